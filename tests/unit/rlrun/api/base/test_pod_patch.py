"""What a `podTemplate` must not set."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rlrun.api.base.pod_patch import CONTAINER_FIELDS, ENV_NAMES, GRANTS, POD_FIELDS, SECURITY_FIELDS, STRICT_VALUES
from rlrun.api.base.rules import ADMITTED
from rlrun.api.model import Trainer

Obj = dict[str, Any]
GUIDE = Path(__file__).parents[5] / "docs/guides/models.md"


def container(name: str = "agent", **fields: Any) -> Obj:
    return {"spec": {"containers": [{"name": name, **fields}]}}


def security(**context: Any) -> Obj:
    return container(securityContext=context)


REFUSED: list[tuple[Obj, str]] = [
    *(({"spec": {field: True}}, f"spec.{field}") for field in POD_FIELDS),
    *((container("trainer", **{field: "x"}), f"containers[trainer].{field}") for field in CONTAINER_FIELDS),
    *((security(**{field: {}}), f"securityContext.{field}") for field in SECURITY_FIELDS),
    *((security(**{field: "x"}), f"securityContext.{field}") for field in STRICT_VALUES),
    *((container(env=[{"name": name.replace("*", "X"), "value": "x"}]), "env[") for name in ENV_NAMES),
    ({"kind": "Pod"}, "kind"),
    ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
    ({"metadata": {"labels": {"rlrun.dev/role": "orchestrator"}}}, "metadata.labels[rlrun.dev/role]"),
    ({"metadata": {"annotations": {"rlrun.dev/token": "x"}}}, "metadata.annotations[rlrun.dev/token]"),
    ({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/vllm": "unconfined"}}}, "apparmor"),
    ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext.runAsUser"),
    ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "seccompProfile"),
    ({"spec": {"securityContext": {"fsGroup": 0}}}, "spec.securityContext.fsGroup"),
    ({"spec": {"securityContext": {"supplementalGroups": [44, 0]}}}, "spec.securityContext.supplementalGroups"),
    ({"spec": {"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}}, "sysctls"),
    *(({"metadata": {"annotations": {f"{begin}x": "y"}}}, f"annotations[{begin}x]") for begin in GRANTS),
    ({"metadata": {"labels": {"azure.workload.identity/use": "true"}}}, "metadata.labels[azure.workload.identity/use]"),
    *(
        (container("trainer", volumeMounts=[{"name": "own", "mountPath": path}]), "volumeMounts[")
        for path in ("//etc/rlrun", "/etc//rlrun", "/etc/./rlrun", "/x/../etc/rlrun", "/etc/rlrun/", "/run/secrets/a")
    ),
    ({"spec": {"securityContext": None}}, "spec.securityContext"),
    ({"spec": {"containers": {}}}, "spec.containers"),
    ({"spec": {"containers": ["vllm"]}}, "spec.containers"),
    ({"spec": {"containers": [{"image": "a"}]}}, "spec.containers[0]"),
    ({"spec": {"containers": [{"name": []}]}}, "spec.containers[0].name"),
    ({"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.volumes[0].name"),
    ({"spec": {"hostAliases": [{"hostnames": ["a"]}]}}, "spec.hostAliases[0].ip"),
    (container(volumeMounts=[{"name": "own"}]), "containers[agent].volumeMounts[0].mountPath"),
    (container(env=[{"value": "a"}]), "containers[agent].env[0].name"),
    (container(ports=[{"name": "http"}]), "containers[agent].ports[0].containerPort"),
    (container(ports=[{"containerPort": "8080"}]), "containers[agent].ports[0].containerPort"),
    (container(resources={"limits": {"cpu": "many"}}), "containers[agent].resources.limits.cpu"),
    (container(resources=[]), "containers[agent].resources"),
    ({"spec": {"affinity": "x"}}, "spec.affinity"),
    ({"spec": {"affinity": {"podAntiAffinity": []}}}, "spec.affinity.podAntiAffinity"),
    (
        {"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}},
        "podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    ),
    ({"spec": {"nodeSelector": "x"}}, "spec.nodeSelector"),
    ({"spec": {"tolerations": {}}}, "spec.tolerations"),
    ({"spec": []}, "spec"),
    ({"spec": {"$patch": "replace"}}, "spec.$patch"),
    ({"spec": {"initContainers": [{"name": "fetch-model", "image": "a"}]}}, "initContainers[fetch-model].image"),
    (security(capabilities={"add": ["IPC_LOCK"], "drop": ["ALL"]}), "securityContext.capabilities"),
    (security(capabilities={"drop": []}), "securityContext.capabilities"),
    (container(ports=[{"containerPort": 1, "hostPort": 1}]), "hostPort"),
    (container("vllm", envFrom=[{"secretRef": {"name": "a"}}]), "envFrom"),
    (container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]), "secretKeyRef"),
    (container(volumeMounts=[{"name": "storage-token-trainer", "mountPath": "/x"}]), "volumeMounts["),
    (container("trainer", volumeMounts=[{"name": "own", "mountPath": "/var/run/secrets/a"}]), "volumeMounts["),
    ({"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}, "volumes[a].hostPath"),
    ({"spec": {"volumes": [{"name": "a", "projected": {"sources": []}}]}}, "volumes[a].projected"),
    ({"spec": {"volumes": [{"name": "a", "secret": {"secretName": "b"}}]}}, "volumes[a].secret"),
    ({"spec": {"volumes": [{"name": "models", "emptyDir": {}}]}}, "volumes[models]"),
]


@pytest.mark.parametrize(("patch", "field"), REFUSED, ids=[f"{i}-{field}" for i, (_, field) in enumerate(REFUSED)])
def test_a_patch_that_would_open_the_pod_is_refused_by_name(patch: Obj, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Trainer.model_validate({"podTemplate": patch})
    (error,) = refused.value.errors()
    assert error["loc"] == ("podTemplate",)
    assert field in error["msg"]


def test_a_patch_that_opens_nothing_is_accepted() -> None:
    claim = {"name": "gpu", "resourceClaimTemplateName": "two-gpus"}
    env = [{"name": "NCCL_DEBUG", "value": "INFO"}]
    own = {"name": "trainer", "resources": {"claims": [{"name": "gpu"}]}, "env": env}
    agent = {
        "name": "agent",
        "image": "agent:1",
        "command": ["agent"],
        "securityContext": {"capabilities": {"drop": ["ALL"]}, "runAsUser": 2000},
        "volumeMounts": [{"name": "cache", "mountPath": "/cache"}, {"name": "sock", "mountPath": "/var/run/agent"}],
    }
    patch = {
        "metadata": {"labels": {"team": "rl"}, "annotations": {"prometheus.io/scrape": "true"}},
        "spec": {
            "resourceClaims": [claim],
            "securityContext": {"runAsUser": 2000, "fsGroup": 2000, "supplementalGroups": [44]},
            "containers": [own, agent],
            "volumes": [{"name": "sock", "emptyDir": {}}],
        },
    }
    assert Trainer(pod_template=patch).pod_template == patch


def test_labels_may_have_the_names_of_fields() -> None:
    matched = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"env": "prod"}}}
    spreading = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [matched]}}
    spec = {"nodeSelector": {"env": "prod"}, "affinity": spreading}
    patch = {"metadata": {"labels": {"env": "prod"}, "annotations": {"ports": "8080"}}, "spec": spec}
    assert Trainer(pod_template=patch).pod_template == patch


@pytest.mark.parametrize(
    ("affinity", "field"),
    [
        ({"podAntiAffinity": []}, "affinity.podAntiAffinity"),
        ({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": "x"}}, "IgnoredDuringExecution"),
    ],
)
def test_an_affinity_that_cannot_be_extended_is_refused(affinity: Obj, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Trainer.model_validate({"nodes": 2, "affinity": affinity})
    (error,) = refused.value.errors()
    assert error["loc"] == ("affinity",)
    assert field in error["msg"]


def test_an_attempt_that_has_begun_keeps_a_patch_that_is_allowed() -> None:
    stored = {"podTemplate": {"spec": {"priority": 7}}, "nodes": 2, "gpus": 0}
    assert Trainer.model_validate(stored, context=ADMITTED).pod_template == stored["podTemplate"]


@pytest.mark.parametrize(
    ("stored", "field"),
    [
        ({"podTemplate": {"spec": {"hostNetwork": True}}}, "spec.hostNetwork"),
        ({"podTemplate": {"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}}, "volumes[a].hostPath"),
        ({"podTemplate": security(privileged=True)}, "securityContext.privileged"),
        ({"labels": {"rlrun.dev/role": "orchestrator"}}, "labels"),
        ({"annotations": {"rlrun.dev/token": "x"}}, "annotations"),
        ({"volumes": [{"name": "models", "emptyDir": {}}]}, "volumes"),
        ({"volumes": [{"name": "own", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"volumes": [{"name": "own"}]}, "exactly one source"),
        ({"volumeMounts": [{"name": "tmp", "mountPath": "/data"}]}, "volumeMounts"),
        (
            {"volumes": [{"name": "own", "emptyDir": {}}], "volumeMounts": [{"name": "own", "mountPath": "/models"}]},
            "mountPath",
        ),
    ],
)
def test_what_opens_a_pod_is_refused_in_a_stored_spec_too(stored: Obj, field: str) -> None:
    """Users can change the ConfigMap with the spec of an attempt."""
    with pytest.raises(ValidationError) as refused:
        Trainer.model_validate(stored, context=ADMITTED)
    assert field in str(refused.value)


def test_the_guide_lists_what_is_refused() -> None:
    text = GUIDE.read_text()
    listed = [*POD_FIELDS, *CONTAINER_FIELDS, *SECURITY_FIELDS, *STRICT_VALUES, *ENV_NAMES, *GRANTS]
    assert [name for name in listed if f"`{name}`" not in text] == []
