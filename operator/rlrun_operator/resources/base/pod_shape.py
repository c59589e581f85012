"""Applies pod shapes to a pod template. Values set by the operator take precedence."""

from collections.abc import Mapping, Sequence

from rlrun.api.base.pod_shape import MeshInjection, PodShape
from rlrun.api.base.schema import Schema
from rlrun.kube.objects import Obj

STAY: Mapping[str, str] = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
"""Annotations that keep autoscalers from evicting a pod to remove a node, which would cost a run minutes of work."""


MESH_LABELS: Mapping[MeshInjection, Mapping[str, str]] = {
    MeshInjection.native: {},
    MeshInjection.refused: {
        "istio.io/dataplane-mode": "none",
        "kuma.io/sidecar-injection": "disabled",
        "sidecar.istio.io/inject": "false",
    },
}
MESH_ANNOTATIONS: Mapping[MeshInjection, Mapping[str, str]] = {
    MeshInjection.native: {
        "config.alpha.linkerd.io/proxy-enable-native-sidecar": "true",  # before 2.19
        "config.beta.linkerd.io/proxy-enable-native-sidecar": "true",
        "sidecar.istio.io/nativeSidecar": "true",
    },
    MeshInjection.refused: {"consul.hashicorp.com/connect-inject": "false", "linkerd.io/inject": "disabled"},
}


def apply_shapes(template: Obj, shapes: Sequence[PodShape], selector: Mapping[str, str]) -> None:
    """Add the shapes to the template, and their mounts to its first container.

    Args:
        template: Template with the operator's own labels, volumes and mounts, which is modified.
        shapes: Shapes of the pods. If two shapes set the same key, the later shape takes precedence.
        selector: Labels of the pods, for topology spread constraints without a selector.
    """
    metadata, spec = template["metadata"], template["spec"]
    main = spec["containers"][0]
    labels: dict[str, str] = {}
    annotations = dict(STAY)
    for mesh in [s.mesh_injection for s in shapes if s.mesh_injection][-1:]:
        labels |= MESH_LABELS[mesh]
        annotations |= MESH_ANNOTATIONS[mesh]
    for shape in shapes:
        labels |= shape.labels
        annotations |= shape.annotations
        spec["volumes"] = _merge(spec["volumes"], shape.volumes, "name")
        main["volumeMounts"] = _merge(main["volumeMounts"], shape.volume_mounts, "mountPath")
        given = {
            "nodeSelector": {**spec.get("nodeSelector", {}), **shape.node_selector},
            "tolerations": [*spec.get("tolerations", []), *(t.to_json_dict() for t in shape.tolerations)],
            "affinity": dict(shape.affinity),
            "topologySpreadConstraints": [
                {"labelSelector": {"matchLabels": dict(selector)}, **c} for c in shape.topology_spread_constraints
            ],
            "runtimeClassName": shape.runtime_class_name,
            "schedulerName": shape.scheduler_name,
            "priorityClassName": shape.priority_class_name,
        }
        spec |= {key: value for key, value in given.items() if value}
    metadata["labels"] = {**labels, **metadata["labels"]}
    metadata["annotations"] = {**annotations, **metadata.get("annotations", {})}


def _merge(own: Sequence[Obj], added: Sequence[Schema], key: str) -> list[Obj]:
    """Return the entries of both lists. An added entry replaces an existing one with the same key."""
    entries = {entry[key]: entry for entry in (*own, *(a.to_json_dict() for a in added))}
    return list(entries.values())


def keep_apart(template: Obj, labels: Mapping[str, str]) -> None:
    """Add an anti-affinity that keeps pods with these labels on different nodes."""
    rule = {"labelSelector": {"matchLabels": dict(labels)}, "topologyKey": "kubernetes.io/hostname"}
    spec = template["spec"]
    affinity = spec.get("affinity", {})
    others = affinity.get("podAntiAffinity", {})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    rules = {**others, required: [*others.get(required, []), rule]}
    spec["affinity"] = {**affinity, "podAntiAffinity": rules}
