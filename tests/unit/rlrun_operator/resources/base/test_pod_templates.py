"""Ephemeral storage: every pod of a run and of a serving pool is limited, and no limit ends a pod that is within it."""

import pytest

from tests.support.built_children import POOL, SOURCES, Obj, containers, pod_templates, pods

RUN_PODS = ("reverse-env-0", "reverse-eval-0", "reverse-trainer", "reverse-inference", "reverse-orchestrator-a2")
MODEL_PODS = ("reverse-trainer", "reverse-inference", POOL.name)
STORAGE = "ephemeral-storage"
UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def size(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def volumes(spec: Obj) -> dict[str, Obj]:
    """The volumes on the disk of the node."""
    found = {v["name"]: v["emptyDir"] for v in spec["volumes"] if "emptyDir" in v}
    return {name: source for name, source in found.items() if source.get("medium") != "Memory"}


def named(spec: Obj, kind: str) -> list[str | None]:
    """Requests or limits of the containers, init containers first."""
    return [c.get("resources", {}).get(kind, {}).get(STORAGE) for c in containers({"spec": spec})]


def pod_limit(spec: Obj) -> int | None:
    """What the kubelet compares the whole pod with: the sum of the containers or the largest init container."""

    def limits(made: list[Obj]) -> list[int]:
        found = (c.get("resources", {}).get("limits", {}).get(STORAGE) for c in made)
        return [size(limit) for limit in found if limit]

    own, first = limits(spec["containers"]), limits(spec.get("initContainers", []))
    return max([sum(own), *first]) if own or first else None


@pytest.mark.parametrize("source", SOURCES)
def test_every_volume_has_a_size_and_every_container_a_request_and_a_limit(source: str) -> None:
    found = pods(model={"source": source})
    assert {*RUN_PODS, POOL.name} <= set(found)
    for name, spec in found.items():
        for volume in spec["volumes"]:
            assert "emptyDir" not in volume or volume["emptyDir"].get("sizeLimit"), (name, volume)
        assert {"tmp"} <= set(volumes(spec))
        assert set(named(spec, "requests")) == {"64Mi"}, name
        assert None not in named(spec, "limits"), name


@pytest.mark.parametrize(("compute_size", "limit"), [("S", "10Gi"), ("M", "20Gi"), ("L", "50Gi")])
def test_the_size_of_an_environment_limits_its_disk(compute_size: str, limit: str) -> None:
    spec = pods(infrastructure={"computeSize": compute_size})["reverse-env-0"]
    assert named(spec, "limits") == [limit]
    assert volumes(spec) == {"tmp": {"sizeLimit": limit}, "package": {"sizeLimit": limit}}


def test_pods_with_models_have_room_for_large_ones_and_orchestrators_for_their_files() -> None:
    found = pods()
    for name in MODEL_PODS:
        assert {v["sizeLimit"] for v in volumes(found[name]).values()} == {"2Ti"}, name
    assert set(volumes(found["reverse-inference"])) == {"tmp", "cache", "models", "adapters"}
    assert volumes(found["reverse-orchestrator-a2"])["tmp"] == {"sizeLimit": "20Gi"}


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({}, {}),
        ({"ephemeralStorage": {"model": "1Ti", "orchestrator": "5Gi"}}, {}),
        ({}, {"inference": {"resources": {"limits": {STORAGE: "300Gi"}}}}),
        ({}, {"inference": {"resources": {"requests": {STORAGE: "300Gi"}}}}),
        ({"sidecarResources": {"limits": {STORAGE: "1Gi"}}}, {}),
        ({"orchestratorResources": {"limits": {STORAGE: "40Gi"}}}, {}),
    ],
    ids=["defaults", "settings", "limit of the model", "request of the model", "sidecar", "orchestrator"],
)
def test_a_volume_may_be_filled_before_the_pod_is_evicted(settings: Obj, model: Obj) -> None:
    for name, spec in pods(settings, model).items():
        limit = pod_limit(spec)
        assert limit is not None, name
        assert all(size(v["sizeLimit"]) <= limit for v in volumes(spec).values()), name


def test_limits_of_an_rlmodel_come_first() -> None:
    resources = {"limits": {"memory": "64Gi", STORAGE: "300Gi"}}
    spec = pods(model={"trainer": {"resources": resources}})["reverse-trainer"]
    (main,) = spec["containers"]
    assert main["resources"]["limits"] == {"cpu": "16", "memory": "64Gi", STORAGE: "300Gi", "nvidia.com/gpu": "1"}
    assert "memory" not in main["resources"]["requests"], "Kubernetes requests what an RLModel limits"
    assert STORAGE not in main["resources"].get("requests", {}), "Kubernetes requests what an RLModel limits"
    assert {v["sizeLimit"] for v in volumes(spec).values()} == {"300Gi"}


def test_limits_of_the_orchestrators_resources_come_first() -> None:
    own = {"requests": {STORAGE: "1Gi"}, "limits": {STORAGE: "40Gi"}}
    spec = pods({"orchestratorResources": own})["reverse-orchestrator-a2"]
    assert spec["containers"][0]["resources"] == own
    assert volumes(spec)["tmp"] == {"sizeLimit": "40Gi"}


@pytest.mark.parametrize("off", ["", None])
@pytest.mark.parametrize("source", SOURCES)
def test_pods_without_a_limit_have_no_limited_container(source: str, off: str | None) -> None:
    found = pods({"ephemeralStorage": {"model": off, "orchestrator": off}}, {"source": source})
    for name in (*MODEL_PODS, "reverse-orchestrator-a2"):
        assert pod_limit(found[name]) is None, "a limit of the sidecar alone would be that of the pod"
        assert set(named(found[name], "requests")) == {None}
        assert volumes(found[name])["tmp"] == {}
    assert named(found["reverse-env-0"], "limits") == ["10Gi"]


def test_an_environment_may_have_no_limit() -> None:
    sizes = {"S": {"cpu": "1", "memory": "1Gi", "workers": 1, "ephemeralStorage": ""}}
    spec = pods({"computeSizes": sizes})["reverse-env-0"]
    assert (named(spec, "limits"), named(spec, "requests")) == ([None], [None])
    assert volumes(spec) == {"tmp": {}, "package": {}}


@pytest.mark.parametrize(("limit", "expected"), [("2", {"cpu": "2", "memory": "1Gi"}), ("", {"memory": "1Gi"})])
def test_an_environment_may_have_a_limit_of_cpu(limit: str, expected: Obj) -> None:
    sizes = {"S": {"cpu": "1", "cpuLimit": limit, "memory": "1Gi", "workers": 1, "ephemeralStorage": ""}}
    [environment] = pods({"computeSizes": sizes})["reverse-env-0"]["containers"]
    assert environment["resources"] == {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": expected}


def test_without_a_request_only_volumes_are_limited() -> None:
    for name, spec in pods({"ephemeralStorage": {"request": ""}}).items():
        assert {*named(spec, "requests"), *named(spec, "limits")} == {None}, name
        assert all(v["sizeLimit"] for v in volumes(spec).values()), name


@pytest.mark.parametrize("workload", ["reverse-trainer", "reverse-inference"])
def test_pods_that_download_weights_request_the_disk_that_the_model_names(workload: str) -> None:
    resources = {"resources": {"requests": {"ephemeral-storage": "16Gi"}}}
    model = {"trainer": resources, "inference": resources}
    made = {c["name"]: c["resources"] for c in containers(pod_templates(None, model)[workload])}
    for name in ("fetch-model", "trainer" if "trainer" in made else "vllm"):
        assert made[name]["requests"]["ephemeral-storage"] == "16Gi"
        assert made[name]["limits"]["ephemeral-storage"] == "2Ti"
