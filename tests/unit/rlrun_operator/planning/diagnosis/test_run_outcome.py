"""The end of a run, read from its Job and its last pods."""

from typing import Any

from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.diagnosis.run_outcome import find_outcome

from tests.support.operator_world import pod, terminated

Obj = dict[str, Any]


def status_json(phase: RunPhase, problem: Problem | None = None) -> str:
    return RunStatus(phase=phase, step=4, max_steps=10, problem=problem).model_dump_json(by_alias=True)


def job(kind: str) -> Obj:
    return {"status": {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}


class TestOutcome:
    def test_nothing_while_it_runs(self) -> None:
        assert find_outcome(job("SuccessCriteriaMet"), [pod("orchestrator")]) is None

    def test_crash_is_no_end(self) -> None:
        assert find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(1))]) is None

    def test_completed_with_its_last_word(self) -> None:
        message = status_json(RunPhase.completed)
        found = find_outcome({}, [pod("orchestrator", phase="Succeeded", state=terminated(0, message=message))])
        assert found
        assert found.problem is None
        assert found.last
        assert found.last.step == 4

    def test_completed_though_the_pod_is_gone(self) -> None:
        found = find_outcome(job("Complete"), [])
        assert found
        assert found.problem is None

    def test_mistake_of_the_user(self) -> None:
        message = status_json(RunPhase.failed, Problem(reason="WandbKeyMissing", message="m"))
        found = find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(64, message=message))])
        assert found
        assert found.problem
        assert found.problem.reason == "WandbKeyMissing"

    def test_mistake_without_a_message(self) -> None:
        found = find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(64, message="boom"))])
        assert found
        assert found.problem
        assert "boom" in found.problem.message

    def test_job_gave_up(self) -> None:
        found = find_outcome(job("Failed"), [])
        assert found
        assert found.problem
        assert found.problem.reason == "OrchestratorFailed"
