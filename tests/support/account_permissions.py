"""Permissions of an account against the API server's audit log: those never used, and requests that were refused. Pure.

Rules are those of Role and ClusterRole (rbac.authorization.k8s.io/v1), events those of audit.k8s.io/v1.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Obj = Mapping[str, Any]

CREATED = 201
DECISION = "authorization.k8s.io/decision"
"""Annotation of an event. A quota or a namespace that is being deleted refuses with 403 as well, but after "allow"."""


class Permission(NamedTuple):
    """A verb on a resource, for example `patch` on `rlruns/status`. The core group is the empty string."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"


@dataclass(frozen=True)
class Request:
    """An audited request of one account."""

    permissions: tuple[Permission, ...]
    is_allowed: bool
    """False if the account has no permission for it."""
    path: str


def granted(rules: Iterable[Obj]) -> set[Permission]:
    """Return the permissions of a role. Raises ValueError for a wildcard, which allows unknown resources too."""
    found = {
        Permission(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    if wild := sorted(str(permission) for permission in found if "*" in permission):
        raise ValueError(f"the role has wildcards: {', '.join(wild)}. Name the groups, resources and verbs.")
    return found


def requests_of(account: str, events: Iterable[Obj]) -> list[Request]:
    """Return the requests of `system:serviceaccount:<namespace>:<name>` to resources, in order."""
    return [
        Request(_permissions(event), event.get("annotations", {}).get(DECISION) == "allow", event["requestURI"])
        for event in events
        if event["user"]["username"] == account and "objectRef" in event
    ]


def unused(permissions: Iterable[Permission], requests: Iterable[Request]) -> list[Permission]:
    """Return the permissions that no request needed."""
    used = {permission for request in requests if request.is_allowed for permission in request.permissions}
    return sorted(set(permissions) - used)


def refused(requests: Iterable[Request], permissions: Collection[Permission] = ()) -> list[str]:
    """Return the requests that were refused for want of a permission.

    `permissions`: those of a role that is bound in namespaces. They end with the RoleBinding of a namespace that is
    being deleted, so that their refusal shows nothing.
    """
    missing = (r for r in requests if not r.is_allowed and r.permissions[0] not in permissions)
    return sorted({f"{request.permissions[0]} ({request.path})" for request in missing})


def _permissions(event: Obj) -> tuple[Permission, ...]:
    ref = event["objectRef"]
    resource = "/".join(part for part in (ref["resource"], ref.get("subresource")) if part)
    asked = Permission(ref.get("apiGroup", ""), resource, event["verb"])
    if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == CREATED:
        # Server-side apply that makes the object: the API server asks for create as well.
        return asked, asked._replace(verb="create")
    return (asked,)
