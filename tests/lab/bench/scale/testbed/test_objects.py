"""Objects of a burst: as many pods for each peer, spread over the namespaces."""

from collections import Counter

from rlrun.api.run import RLRunSpec

from bench.scale.testbed import objects


def test_runs_and_peers_have_as_many_pods() -> None:
    pods = objects.PODS_PER_RUN * 25
    assert len(list(objects.runs("runs", 25))) * objects.PODS_PER_RUN == pods
    assert len(list(objects.jobs("jobs", pods))) == pods


def test_jobs_have_the_specs_of_a_runs_pods_by_turns_and_end() -> None:
    pods = [{"containers": [], "restartPolicy": "Always", "serviceAccountName": "run"}, {"containers": [1]}]
    chains = list(objects.jobs("alike", 3, [objects.pod_of_job(pod) for pod in pods]))
    found = [chain[0].body["spec"]["template"]["spec"] for chain in chains]
    kept = {"restartPolicy": "Never", "serviceAccountName": "default"}
    assert found == [{"containers": names, **kept} for names in ([], [1], [])]


def test_each_namespace_has_its_share_and_no_name_twice() -> None:
    chains = list(objects.runs("runs", 100))
    assert set(Counter(chain[0].path for chain in chains).values()) == {10}
    assert len({(c[0].path, c[0].body["metadata"]["name"]) for c in chains}) == 100


def test_runs_are_valid() -> None:
    RLRunSpec.model_validate(objects.run(1)["spec"])


def test_a_finished_run_is_a_copy_that_ended_long_ago() -> None:
    template = objects.run(7)
    template["metadata"] |= {"finalizers": ["f"], "uid": "u", "resourceVersion": "3", "labels": {"a": "b"}}
    template["spec"]["stop"] = True
    template["status"] = {"phase": "Stopped", "observedGeneration": 2, "completionTime": "now", "attempt": 1}
    template["status"]["conditions"] = [{"type": "Running", "observedGeneration": 2}]
    create, status = next(iter(objects.finished_runs("finished", 1, template)))
    wanted = {"name": "finished-0", "finalizers": ["f"], "labels": {"a": "b"}, "annotations": {}}
    assert (create.body["metadata"], create.body["spec"]["stop"]) == (wanted, True)
    assert status.path == f"{create.path}/finished-0/status"
    assert status.body_after is not None
    body = status.body_after({"metadata": {"resourceVersion": "7"}})
    assert body["metadata"] == {"resourceVersion": "7"}
    assert body["status"] == {
        "phase": "Stopped",
        "attempt": 1,
        "conditions": [{"type": "Running", "observedGeneration": 1}],
        **objects.LONG_AGO,
    }
