"""Restarts and crashes counted from pods."""

from rlrun_operator.planning.diagnosis.crash_counter import count_restarts

from tests.support.cluster_objects import pod, terminated


class TestRestarts:
    def test_each_kind_of_restart_is_counted_once(self) -> None:
        first = count_restarts([], [pod("trainer", restarts=2, last=terminated(1))])
        assert (first.restarts, len(first.crashes)) == (2, 2)
        again = count_restarts(first.components, [pod("trainer", restarts=2, last=terminated(1))])
        assert (again.restarts, again.crashes) == (0, [])
        gone = count_restarts(again.components, [])
        assert (gone.restarts, gone.components[0].crashes) == (1, 2)
        assert count_restarts(gone.components, []).restarts == 0

    def test_deleted_pod_counts_as_a_replacement(self) -> None:
        known = count_restarts([], [pod("trainer")])
        leaving = count_restarts(known.components, [pod("trainer", deleting=True, state=terminated(143))])
        assert (leaving.restarts, leaving.crashes) == (1, [])
        assert count_restarts(leaving.components, [pod("trainer", uid="new")]).restarts == 0

    def test_evicted_pod_is_not_a_crash(self) -> None:
        evicted = pod("trainer", phase="Failed", state=terminated(137))
        evicted["status"]["reason"] = "Evicted"
        found = count_restarts([], [evicted])
        assert (found.restarts, found.crashes) == (1, [])

    def test_disrupted_orchestrator_is_not_a_crash(self) -> None:
        disrupted = [{"type": "DisruptionTarget", "status": "True"}]
        found = count_restarts([], [pod("orchestrator", phase="Failed", state=terminated(143), conditions=disrupted)])
        assert (found.restarts, found.crashes) == (1, [])

    def test_failed_pods_of_a_job_are_crashes(self) -> None:
        pods = [pod("orchestrator", uid=str(i), phase="Failed", state=terminated(1)) for i in range(3)]
        found = count_restarts([], pods)
        assert (found.restarts, found.components[0].crashes) == (3, 3)

    def test_components_are_kept_apart(self) -> None:
        pods = [
            pod("environment", "env-0", restarts=1, last=terminated(1)),
            pod("environment", "env-1", ready=True),
        ]
        found = {c.name: (c.ready, c.crashes) for c in count_restarts([], pods).components}
        assert found == {"env-0": (0, 1), "env-1": (1, 0)}
