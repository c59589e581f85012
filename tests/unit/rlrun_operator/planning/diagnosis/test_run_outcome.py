"""The end of a run, read from its Job and its last pods."""

from typing import Any

from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.diagnosis.run_outcome import find_outcome

from tests.support.cluster_objects import pod, terminated

Obj = dict[str, Any]


def status_json(phase: RunPhase, problem: Problem | None = None) -> str:
    return RunStatus(phase=phase, step=4, max_steps=10, problem=problem).model_dump_json(by_alias=True)


def job(kind: str) -> Obj:
    return {"status": {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}


class TestOutcome:
    def test_running_job_has_no_outcome(self) -> None:
        assert find_outcome(job("SuccessCriteriaMet"), [pod("orchestrator")]) is None

    def test_crash_is_not_an_outcome(self) -> None:
        assert find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(1))]) is None

    def test_completed_run_has_its_final_status(self) -> None:
        message = status_json(RunPhase.completed)
        found = find_outcome({}, [pod("orchestrator", phase="Succeeded", state=terminated(0, message=message))])
        assert found
        assert found.problem is None
        assert found.last
        assert found.last.step == 4

    def test_completed_job_without_pods_completes_the_run(self) -> None:
        found = find_outcome(job("Complete"), [])
        assert found
        assert found.problem is None

    def test_configuration_error_fails_the_run(self) -> None:
        message = status_json(RunPhase.failed, Problem(reason="WandbKeyMissing", message="m"))
        found = find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(64, message=message))])
        assert found
        assert found.problem
        assert found.problem.reason == "WandbKeyMissing"

    def test_configuration_error_without_a_message_quotes_the_log(self) -> None:
        found = find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(64, message="boom"))])
        assert found
        assert found.problem
        assert "boom" in found.problem.message

    def test_failed_job_fails_the_run(self) -> None:
        found = find_outcome(job("Failed"), [])
        assert found
        assert found.problem
        assert found.problem.reason == "OrchestratorFailed"

    def test_the_newest_pod_of_the_orchestrator_decides(self) -> None:
        failed = pod("orchestrator", uid="old", phase="Failed", state=terminated(64), created="2026-01-01T00:00:00Z")
        done = pod("orchestrator", uid="new", phase="Succeeded", state=terminated(0), created="2026-01-01T00:01:00Z")
        for pods in ([failed, done], [done, failed]):
            found = find_outcome(None, pods)
            assert found
            assert found.problem is None

    def test_condition_that_is_not_true_is_no_outcome(self) -> None:
        ended = job("Complete")
        ended["status"]["conditions"][0]["status"] = "False"
        assert find_outcome(ended, []) is None
