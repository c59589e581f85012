"""Checks of what runs on GPUs need, with the rights of the platform team and without."""

from typing import Any

import pytest
import yaml
from rlrun.constants import MINIMUM_DRIVER
from rlrun.installation.checks import CheckFailed
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CLAIM, CONFIG_MAP, DEPLOYMENT, NODE, RLMODEL, RUNTIME_CLASS, SECRET, STORAGE_CLASS
from rlrun.kube.objects import Obj
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis.checks import ClusterCheck
from rlrun_cli.remote.diagnosis.gpu_checks import (
    DRIVER_LABELS,
    check_driver,
    check_gpus,
    check_pull_secrets,
    check_runtime_classes,
    check_volumes,
    examine_gpus,
)

from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object


def node(name: str = "gpu-1", labels: dict[str, str] | None = None, taints: list[Obj] = [], **offers: str) -> Obj:  # noqa: B006
    allocatable = {key.replace("__", "/").replace("_", "-"): value for key, value in offers.items()}
    found = custom_object(NODE, name, status={"allocatable": {"cpu": "8", **allocatable}})
    found["metadata"]["labels"] = labels or {}
    return {**found, "spec": {"taints": taints}}


def model(**spec: Any) -> Obj:
    return custom_object(RLMODEL, "m", spec={"id": "a/m", "source": "s3://b/m", **spec})


def eight(**changes: Any) -> Obj:
    found = node(**changes)
    found["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    return found


def settings(api: FakeCluster, **content: Any) -> None:
    volume = {"configMap": {"name": "rlrun-settings"}}
    deployment = custom_object(DEPLOYMENT, "rlrun", spec={"template": {"spec": {"volumes": [volume]}}})
    deployment["metadata"]["labels"] = {
        "app.kubernetes.io/name": "rlrun",
        "app.kubernetes.io/component": "operator",
    }
    api.put(deployment)
    api.put(custom_object(CONFIG_MAP, "rlrun-settings", data={"settings.yaml": yaml.safe_dump(content)}))


def problem(check: ClusterCheck, remote: RemoteCluster) -> str:
    with pytest.raises(CheckFailed) as failed:
        check(remote)
    return str(failed.value)


def test_gpus_of_each_node_are_listed_by_resource(api: FakeCluster, remote: RemoteCluster) -> None:
    mig = node("gpu-2")
    mig["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = "7"
    for obj in (eight(), mig, node("cpu-1"), model()):
        api.put(obj)
    assert (
        check_gpus(remote) == "8 nvidia.com/gpu on gpu-1, 7 nvidia.com/mig-1g.10gb on gpu-2; RLModels that fit: all 1"
    )


def test_a_cluster_without_a_device_plugin(api: FakeCluster, remote: RemoteCluster) -> None:
    api.put(node())
    assert problem(check_gpus, remote) == "none of the 1 nodes has GPUs"


TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("changes", "spec", "why"),
    [
        ({}, {"trainer": {"gpus": 16}}, "trainer of a/m: 8 of 16 nvidia.com/gpu (1)"),
        ({}, {"inference": {"nodeSelector": {"pool": "a"}}}, "inference of a/m: no label pool=a (1)"),
        ({"taints": [TAINT]}, {}, "trainer of a/m: taint nvidia.com/gpu not tolerated (1)"),
        (
            {},
            {"trainer": {"gpus": 0, "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}},
            "0 of 1 nvidia.com/mig-1g.10gb",
        ),
    ],
)
def test_a_model_without_a_node_is_named(
    api: FakeCluster, remote: RemoteCluster, changes: Any, spec: Any, why: str
) -> None:
    api.put(eight(**changes))
    api.put(model(**spec))
    assert why in problem(check_gpus, remote)


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    ],
)
def test_a_tolerated_taint_is_no_problem(api: FakeCluster, remote: RemoteCluster, toleration: Obj) -> None:
    api.put(eight(taints=[TAINT]))
    api.put(model(trainer={"tolerations": [toleration]}, inference={"tolerations": [toleration]}))
    assert check_gpus(remote)


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "other", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "value": "absent"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
    ],
)
def test_a_toleration_of_another_taint_does_not_help(api: FakeCluster, remote: RemoteCluster, toleration: Obj) -> None:
    api.put(eight(taints=[TAINT]))
    api.put(model(trainer={"tolerations": [toleration]}))
    assert "taint nvidia.com/gpu not tolerated" in problem(check_gpus, remote)


@pytest.mark.parametrize("label", DRIVER_LABELS)
def test_a_driver_that_is_too_old_is_named(api: FakeCluster, remote: RemoteCluster, label: str) -> None:
    api.put(eight(labels={label: "550"}))
    text = f"gpu-1 has 550: the images use CUDA 13, which needs driver {MINIMUM_DRIVER}"
    assert text in problem(check_driver, remote)
    api.put(eight(labels={label: str(MINIMUM_DRIVER)}))
    assert check_driver(remote)


def test_a_driver_that_no_label_names_is_not_taken_for_a_good_one(api: FakeCluster, remote: RemoteCluster) -> None:
    api.put(eight())
    assert "unknown on gpu-1" in problem(check_driver, remote)


def test_a_missing_runtime_class_is_named(api: FakeCluster, remote: RemoteCluster) -> None:
    api.put(model(trainer={"runtimeClassName": "nvidia"}))
    settings(api, environments={"runtimeClassName": "gvisor"})
    assert "nvidia (for trainer of a/m), gvisor (for the environments)" in problem(check_runtime_classes, remote)
    for name in ("nvidia", "gvisor"):
        api.put(custom_object(RUNTIME_CLASS, name))
    assert check_runtime_classes(remote)


def test_a_missing_pull_secret_and_one_of_another_type(api: FakeCluster, remote: RemoteCluster) -> None:
    settings(api, imagePullSecrets=["registry"])
    assert problem(check_pull_secrets, remote) == "Secret registry does not exist in namespace team"
    api.put(custom_object(SECRET, "registry", type="Opaque"))
    assert "has type Opaque" in problem(check_pull_secrets, remote)
    api.put(custom_object(SECRET, "registry", type="kubernetes.io/dockerconfigjson"))
    assert check_pull_secrets(remote)


def test_claims_and_storage_classes_of_models(api: FakeCluster, remote: RemoteCluster) -> None:
    api.put(model(source="pvc://weights/m"))
    assert "claim weights of a/m is missing in namespace team" in problem(check_volumes, remote)
    api.put(custom_object(CLAIM, "weights", status={"phase": "Pending"}))
    assert "is Pending" in problem(check_volumes, remote)
    api.put(custom_object(CLAIM, "weights", status={"phase": "Bound"}))
    assert check_volumes(remote)
    api.put(model(cache={"storageClass": "shared", "size": "1Gi"}))
    assert "StorageClass shared of the cache of a/m does not exist" in problem(check_volumes, remote)
    api.put(model(cache={"size": "1Gi"}))
    api.put(custom_object(STORAGE_CLASS, "shared"))
    assert "the cluster has no default" in problem(check_volumes, remote)


@pytest.mark.parametrize(
    ("request_name", "names"),
    [
        ("list nodes", ("gpus", "driver")),
        ("list runtimeclasses", ("runtime classes",)),
        ("list deployments", ("runtime classes", "pull secrets")),
        ("list persistentvolumeclaims in namespace team", ("volumes",)),
    ],
)
def test_each_missing_right_is_named_and_the_other_checks_go_on(
    api: FakeCluster, remote: RemoteCluster, request_name: str, names: tuple[str, ...]
) -> None:
    api.put(eight(labels={DRIVER_LABELS[0]: "580"}))
    api.answers[request_name] = [ApiError(403, "Forbidden", "no")]
    findings = examine_gpus(remote)
    assert [finding.name for finding in findings if finding.is_problem] == list(names)
    assert {f.text for f in findings if f.is_problem} == {f"not checked; you lack the right to {request_name}"}
