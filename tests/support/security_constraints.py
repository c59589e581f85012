"""A security context constraint of OpenShift as a ValidatingAdmissionPolicy, for an API server that has none.

OpenShift fills in what a pod leaves open and then refuses what the constraint forbids. The policy refuses the same, and
admits what would be filled in. Users and groups come from the annotations that OpenShift gives to each namespace.
"""

from typing import Any

from kubernetes.client import V1Volume

Obj = dict[str, Any]

UID_RANGE = "openshift.io/sa.scc.uid-range"
GROUPS = "openshift.io/sa.scc.supplemental-groups"
ANNOTATIONS = {UID_RANGE: "1000650000/10000", GROUPS: "1000650000/10000"}
"""Annotations of a namespace: first id and number of ids."""
VOLUME_KINDS = sorted(set(V1Volume.attribute_map.values()) - {"name"})
KNOWN = {
    "fsGroup": ["MustRunAs"], "runAsUser": ["MustRunAsRange"], "seLinuxContext": ["MustRunAs"],
    "supplementalGroups": ["RunAsAny"],
}  # fmt: skip
"""Strategies that `policy` can express."""
PROFILES = {"runtime/default": "RuntimeDefault"}
CONTAINERS = "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"


def policy(constraint: Obj, name: str, namespace_labels: dict[str, str]) -> tuple[Obj, Obj]:
    """Return the policy and its binding to the namespaces with these labels."""
    for field, kinds in KNOWN.items():
        assert constraint[field]["type"] in kinds, f"{field}: {constraint[field]}"
    metadata = {"name": name}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    selected = {"namespaceSelector": {"matchLabels": namespace_labels}}
    api = "admissionregistration.k8s.io/v1"
    return (
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule]},
                "variables": _variables(),
                "validations": [{"expression": e, "message": m} for m, e in validations(constraint).items()],
            },
        },
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": selected},
        },
    )


def _variables() -> list[Obj]:
    uids = f"namespaceObject.metadata.annotations['{UID_RANGE}'].split('/')"
    groups = f"namespaceObject.metadata.annotations['{GROUPS}'].split(',')[0].split('/')"
    return [
        {"name": "containers", "expression": CONTAINERS},
        {"name": "firstUid", "expression": f"int({uids}[0])"},
        {"name": "endOfUids", "expression": f"int({uids}[0]) + int({uids}[1])"},
        {"name": "firstGroup", "expression": f"int({groups}[0])"},
    ]


def validations(constraint: Obj) -> dict[str, str]:
    """Return the expressions of the policy by their messages."""
    in_range = "c.runAsUser >= variables.firstUid && c.runAsUser < variables.endOfUids"
    profiles = [PROFILES[name] for name in constraint["seccompProfiles"]]
    forbidden = [kind for kind in VOLUME_KINDS if kind not in constraint["volumes"]]
    context = "object.spec.securityContext"
    made = {
        "runAsUser is not in the range of the namespace": _each("runAsUser", in_range),
        "runAsUser of the pod is not in the range of the namespace": (
            f"!has({context}) || !has({context}.runAsUser) || "
            + in_range.replace("c.runAsUser", f"{context}.runAsUser")
        ),
        "fsGroup is not that of the namespace": (
            f"!has({context}) || !has({context}.fsGroup) || {context}.fsGroup == variables.firstGroup"
        ),
        "seccompProfile is not allowed": _each("seccompProfile", f"c.seccompProfile.type in {profiles}"),
        "seccompProfile of the pod is not allowed": (
            f"!has({context}) || !has({context}.seccompProfile) || {context}.seccompProfile.type in {profiles}"
        ),
        "seLinuxOptions is not that of the namespace": (
            f"(!has({context}) || !has({context}.seLinuxOptions)) && ({_each('seLinuxOptions', 'false')})"
        ),
        "capabilities are added": _each(
            "capabilities",
            f"!has(c.capabilities.add) || c.capabilities.add.all(x, x in {constraint['allowedCapabilities'] or []})",
        ),
        "a volume has a kind that is not allowed": (
            f"!has(object.spec.volumes) || object.spec.volumes.all(v, {' && '.join(f'!has(v.{k})' for k in forbidden)})"
        ),
    }
    if not constraint["allowPrivilegedContainer"]:
        made["a container is privileged"] = _each("privileged", "!c.privileged")
    if not constraint["allowPrivilegeEscalation"]:
        made["allowPrivilegeEscalation is not false"] = (
            "variables.containers.all(k, has(k.securityContext) && has(k.securityContext.allowPrivilegeEscalation) && "
            "!k.securityContext.allowPrivilegeEscalation)"
        )
    if not constraint["allowHostPorts"]:
        made["a container has a port of its node"] = (
            "variables.containers.all(k, !has(k.ports) || k.ports.all(p, !has(p.hostPort) || p.hostPort == 0))"
        )
    for field, key in (("hostNetwork", "allowHostNetwork"), ("hostPID", "allowHostPID"), ("hostIPC", "allowHostIPC")):
        if not constraint[key]:
            made[f"{field} is true"] = f"!has(object.spec.{field}) || !object.spec.{field}"
    return made


def _each(field: str, allowed: str) -> str:
    """Return the expression that each container leaves the field open or has an allowed value in its context `c`."""
    return (
        f"variables.containers.all(k, !has(k.securityContext) || !has(k.securityContext.{field}) || "
        f"[k.securityContext].all(c, {allowed}))"
    )
