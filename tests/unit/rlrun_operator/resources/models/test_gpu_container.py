"""The check of GPUs in the pods of runs and serving pools, before anything is downloaded."""

from typing import Any

import pytest
from rlrun.kube.pods import OWN_CONTAINERS
from rlrun_operator.resources.demand import pod_requests

from tests.support.built_children import Obj, container_of, containers, variables
from tests.support.built_children import build as build_run
from tests.unit.rlrun_operator.resources.access.test_engine_access import pod_of_pool, pod_of_run


def pod_of_trainer(model: Obj) -> Obj:
    made: Obj = build_run(model)["ReplicaSet", "reverse-trainer"]["spec"]["template"]
    return made


def checked(pod: Obj) -> Obj:
    return container_of(pod, "gpu-check")


def test_the_trainer_is_checked_before_its_model_is_fetched() -> None:
    pod = pod_of_trainer({"trainer": {"gpus": 2, "image": "house/trainer:1"}})
    assert [c["name"] for c in containers(pod)] == ["gpu-check", "fetch-model", "trainer"]
    found = checked(pod)
    assert found["command"] == ["python", "-m", "rlrun.service.containers.gpu_check", "trainer"]
    assert found["image"] == "house/trainer:1"
    for container in (found, pod["spec"]["containers"][0]):
        assert variables(container)["RLRUN_GPUS"] == "2"
        assert variables(container)["RLRUN_NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(
    "pod", [pod_of_run({"inference": {"gpus": 4}}), pod_of_pool(inference={"gpus": 4})], ids=["run", "pool"]
)
def test_an_engine_is_checked_with_the_file_that_comes_with_the_middleware(pod: Obj) -> None:
    assert [c["name"] for c in containers(pod)] == ["engine-access", "gpu-check", "fetch-model", "vllm", "sidecar"]
    found = checked(pod)
    assert found["command"] == ["python3", "/engine-access/rlrun_engine_access/gpu_check.py", "inference"]
    assert {"name": "engine-access", "mountPath": "/engine-access", "readOnly": True} in found["volumeMounts"]
    assert found["image"] == container_of(pod, "vllm")["image"]
    assert (variables(found)["RLRUN_GPUS"], found["resources"]["limits"]["nvidia.com/gpu"]) == ("4", "4")


@pytest.mark.parametrize("build", [pod_of_trainer, pod_of_run], ids=["trainer", "engine"])
def test_the_check_takes_no_gpu_in_addition(build: Any) -> None:
    pod = build({"trainer": {"gpus": 8}, "inference": {"gpus": 8}})
    assert pod_requests(pod["spec"])["nvidia.com/gpu"] == 8000
    assert {c["name"] for c in pod["spec"]["initContainers"]} <= OWN_CONTAINERS["trainer"] | OWN_CONTAINERS["inference"]


def test_pods_without_gpus_have_no_check_and_must_have_none() -> None:
    for pod in (pod_of_trainer({"trainer": {"gpus": 0}}), pod_of_run({"inference": {"gpus": 0}})):
        assert "gpu-check" not in [c["name"] for c in pod["spec"]["initContainers"]]
    trainer = pod_of_trainer({"trainer": {"gpus": 0}})["spec"]["containers"][0]
    assert variables(trainer)["RLRUN_GPUS"] == "0"


CLAIMED = {
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    "containers": [{"name": "trainer", "resources": {"claims": [{"name": "gpu"}]}}],
}
PATCHED = {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/mig-3g.40gb": 1}}}]}


@pytest.mark.parametrize(
    "devices",
    [
        {"resources": {"limits": {"nvidia.com/mig-3g.40gb": "1"}}},
        {"resources": {"limits": {"nvidia.com/gpu.shared": "1"}}},
        {"resources": {"requests": {"amd.com/gpu": "1"}}},
        {"podTemplate": {"spec": CLAIMED}},
        {"podTemplate": {"spec": PATCHED}},
    ],
    ids=["MIG", "shared", "AMD", "claim", "patch"],
)
def test_a_trainer_uses_the_device_that_it_gets_without_gpus(devices: Obj) -> None:
    pod = pod_of_trainer({"trainer": {"gpus": 0, **devices}})
    trainer = pod["spec"]["containers"][0]
    assert "RLRUN_GPUS" not in variables(trainer), "0 means CPUs"
    assert trainer["securityContext"]["readOnlyRootFilesystem"] is False
    assert "gpu-check" not in [c["name"] for c in pod["spec"]["initContainers"]]


def test_an_rlmodel_may_say_otherwise_and_its_other_variables_stay_where_they_are() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    env = [
        {"name": "RLRUN_DEVICE", "value": "cpu"},
        {"name": "NVIDIA_SECRET", "valueFrom": secret},
        {"name": "HF_TOKEN", "value": "t"},
    ]
    pod = pod_of_trainer({"trainer": {"gpus": 1, "env": env}})
    assert variables(checked(pod))["RLRUN_DEVICE"] == "cpu"
    assert {"NVIDIA_SECRET", "HF_TOKEN"}.isdisjoint(variables(checked(pod)))
    assert variables(pod["spec"]["containers"][0])["RLRUN_DEVICE"] == "cpu"
