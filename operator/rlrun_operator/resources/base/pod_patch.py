"""Strategic merge of a `podTemplate` into a pod template, with the merge keys of Kubernetes.

Patches have been checked by `rlrun.api.base.pod_patch`, which refuses fields that weaken isolation or cannot be merged.
"""

import copy
from typing import Any

from rlrun.api.base.pod_patch import MERGE_KEYS
from rlrun.kube.objects import Obj

SECURITY_CONTEXT: Obj = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
"""Default security context: that of the restricted Pod Security Standard, and a read-only root filesystem."""
NEW_CONTAINER: Obj = {"securityContext": {k: v for k, v in SECURITY_CONTEXT.items() if k != "readOnlyRootFilesystem"}}
"""Security context of containers that only the patch contains, as required by the restricted Pod Security Standard."""


def patch_template(template: Obj, patch: Obj) -> Obj:
    """Return the template with the patch merged into it. The result shares no objects with the patch."""
    patch = copy.deepcopy(patch)
    spec = patch.get("spec", {})
    for kind in ("containers", "initContainers"):
        own = {container["name"] for container in template["spec"].get(kind, [])}
        added = [c if c["name"] in own else _merge(NEW_CONTAINER, c) for c in spec.get(kind, [])]
        spec = {**spec, kind: added} if added else spec
    merged: Obj = _merge(template, {**patch, "spec": spec})
    return merged


def _merge(base: Any, patch: Any, key: str = "") -> Any:
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{k: _merge(base.get(k), value, k) for k, value in patch.items()}}
    if isinstance(base, list) and key in MERGE_KEYS:
        name = MERGE_KEYS[key]
        entries = {entry[name]: entry for entry in base}
        for entry in patch:
            entries[entry[name]] = _merge(entries.get(entry[name]), entry)
        return list(entries.values())
    return patch
