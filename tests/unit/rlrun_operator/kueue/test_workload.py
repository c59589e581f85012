from typing import Any

import pytest
from rlrun.kube.objects import Obj
from rlrun_operator.kueue.workload import WorkloadPriority, workload, workload_name
from rlrun_operator.resources.base.naming import RunIdentity

from tests.support.built_children import IDENTITY, build


def rendered(model: Obj | None = None, priority: WorkloadPriority | None = None, **run: Any) -> Obj:
    return workload(IDENTITY, "team-a", list(build(model, **run).values()), priority)


def sets(made: Obj) -> dict[str, Obj]:
    return {pods["name"]: pods for pods in made["spec"]["podSets"]}


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [s for k, v in value.items() for s in (k, *strings(v))]
    if isinstance(value, list):
        return [s for v in value for s in strings(v)]
    return [str(value)]


def test_one_workload_stands_for_all_pods_of_the_run() -> None:
    found = sets(rendered({"trainer": {"nodes": 2}, "inference": {"replicas": 3}}))
    assert {name: pods["count"] for name, pods in found.items()} == {
        "trainer": 2,
        "inference": 3,
        "environments": 3,
        "orchestrator": 1,
    }


def test_all_environments_have_the_same_pods_so_they_are_one_set() -> None:
    found = {name: child for (kind, name), child in build().items() if kind == "ReplicaSet" and "-e" in name}
    made = [workload(IDENTITY, "q", [child])["spec"]["podSets"] for child in found.values()]
    assert len(made) == 3
    assert all(pods == made[0] for pods in made)


def test_pods_keep_requests_and_placement_and_nothing_else() -> None:
    shape = {"gpus": 4, "nodeSelector": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    made = rendered({"source": f"hf://a/b@{'0' * 40}", "trainer": shape}, priorityClassName="high")
    trainer = sets(made)["trainer"]["template"]["spec"]
    assert trainer["nodeSelector"] == {"gpu": "h100"}
    assert (trainer["tolerations"], trainer["priorityClassName"]) == ([{"key": "gpu", "operator": "Exists"}], "high")
    assert trainer["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert trainer["initContainers"][0]["resources"]["requests"]
    for pods in made["spec"]["podSets"]:
        spec = pods["template"]["spec"]
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert set(container) <= {"name", "resources", "restartPolicy"}
    assert not {"env", "envFrom", "image", "volumes", "AWS_ACCESS_KEY_ID", "judge"} & set(strings(made["spec"]))


def test_the_workload_belongs_to_the_run_and_to_its_queue() -> None:
    made = rendered()
    assert made["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert made["spec"]["queueName"] == "team-a"
    assert "priority" not in made["spec"]
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("RLRun", "uid-1", True)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == "uid-1"
    assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rlrun-operator"
    assert made["metadata"]["annotations"]["kueue.x-k8s.io/job-owner-gvk"] == "rlrun.dev/v1alpha1, Kind=RLRun"
    assert "finalizers" not in made["metadata"], "the deletion of a run must not hang"
    assert "kueue.x-k8s.io/queue-name" not in strings([c["metadata"] for c in build().values()])


@pytest.mark.parametrize(
    ("kind", "group"), [("WorkloadPriorityClass", "kueue.x-k8s.io"), ("PriorityClass", "scheduling.k8s.io")]
)
def test_a_priority_has_its_value_and_its_class(kind: str, group: str) -> None:
    spec = rendered(priority=WorkloadPriority(kind, "high", 100))["spec"]
    assert (spec["priority"], spec["priorityClassRef"]) == (100, {"group": group, "kind": kind, "name": "high"})


def test_the_digest_follows_what_quota_is_asked_for_and_nothing_else() -> None:
    def digest(made: Obj) -> str:
        return str(made["metadata"]["annotations"]["rlrun.dev/desired"])

    assert digest(rendered()) == digest(rendered(maxSteps=7))
    assert digest(rendered()) != digest(rendered({"trainer": {"nodes": 2}}))
    assert digest(rendered()) != digest(rendered(priority=WorkloadPriority("PriorityClass", "high", 1)))


@pytest.mark.parametrize("name", ["a", "reverse", "r" * 40, "r" * 33 + ".abcdef"])
@pytest.mark.parametrize("attempt", [1, 2_000_000_000])
def test_names_are_values_of_labels_and_differ_between_runs_and_attempts(name: str, attempt: int) -> None:
    made = workload_name(RunIdentity("team", name, "0a1b2c3d-0000", attempt, 1))
    assert len(made) <= 63
    assert made.startswith("rlrun-")
    assert made.endswith(f"-0a1b2-{attempt}")
    assert made != workload_name(RunIdentity("team", name, "0a1b2c3d-0000", attempt + 1, 1))
