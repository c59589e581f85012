"""The API server's verdict on the pods of an RLModel, before a run has them."""

from typing import Any

import pytest
from kubernetes import client
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun_operator.config.settings import OperatorSettings, S3Settings
from rlrun_operator.controller.models.model_pod_check import ModelPodCheck

from local_cluster.control_plane.without_nodes import ControlPlane

SHAPE: dict[str, Any] = {
    "affinity": {
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}
            ]
        }
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "schedulerName": "gang",
    "labels": {"team": "rl"},
    "volumes": [
        {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}},
        {"name": "files", "image": {"reference": "registry.example.com/files:1"}},
    ],
    "volumeMounts": [{"name": "weights", "mountPath": "/weights", "readOnly": True, "subPath": "a"}],
    "cacheClaim": "compiled",
    "shmSize": "8Gi",
}
PATCH: dict[str, Any] = {
    "spec": {
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}],
        "containers": [
            {"name": "trainer", "resources": {"claims": [{"name": "gpu"}]}},
            {"name": "agent", "image": "agent:1"},
        ],
    }
}


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"nodes": 4, **SHAPE, "podTemplate": PATCH}, None),
        ({"podTemplate": {"spec": {"hostAliase": []}}}, 'unknown field "spec.hostAliase"'),
        ({"podTemplate": {"spec": {"containers": [{"name": "agent"}]}}}, "spec.containers[1].image: Required value"),
        ({"affinity": {"nodeAfinity": {}}}, 'unknown field "spec.affinity.nodeAfinity"'),
        ({"runtimeClassName": "no-such-class"}, 'RuntimeClass "no-such-class" not found'),
        ({"priorityClassName": "no-such-class"}, "no PriorityClass with name no-such-class was found"),
        ({"labels": {"team": "a b"}}, "metadata.labels: Invalid value"),
    ],
)
async def test_the_pods_of_a_model_are_judged_without_being_created(
    api: client.ApiClient, control_plane: ControlPlane, namespace: str, trainer: dict[str, Any], said: str | None
) -> None:
    core = client.CoreV1Api(api)
    # The namespace refuses what the restricted Pod Security Standard forbids.
    core.patch_namespace(namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    check = ModelPodCheck(OperatorSettings(s3=S3Settings(bucket="rlrun"), lease_namespace=namespace))
    spec = {"id": "a/b", "source": "s3://rlrun/models/a", "seqLen": 512, "trainer": trainer}
    model = {"metadata": {"name": "a", "uid": "uid-1", "generation": 1}, "spec": spec}
    kube = AsyncKubeClient(AsyncApiTransport(await load_configuration(str(control_plane.kubeconfig))))
    try:
        found = await check.check(kube, model)
    finally:
        await kube.close()
    assert found is not None
    if said is None:
        assert found.value is True, found.message
    else:
        assert found.value is False
        assert said in found.message
    assert core.list_namespaced_pod(namespace).items == []
