from typing import Any

import pytest

from tests.support.account_permissions import Permission, granted, refused, requests_of, unused

ACCOUNT = "system:serviceaccount:rlrun-system:rlrun"
RULES = [
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch", "delete"]},
    {"apiGroups": ["rlrun.dev"], "resources": ["rlruns/status"], "verbs": ["patch"]},
]


def event(
    verb: str, resource: str, code: int = 200, user: str = ACCOUNT, decision: str = "allow", **ref: str
) -> dict[str, Any]:
    return {
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": resource, **ref},
        "requestURI": f"/{resource}",
        "responseStatus": {"code": code},
        "annotations": {"authorization.k8s.io/decision": decision},
    }


def test_permissions_that_were_used_are_those_of_the_log() -> None:
    log = [
        event("patch", "configmaps", 201),
        event("delete", "configmaps"),
        event("patch", "rlruns", apiGroup="rlrun.dev", subresource="status"),
    ]
    assert unused(granted(RULES), requests_of(ACCOUNT, log)) == []


@pytest.mark.parametrize(
    "log",
    [
        [],
        [event("patch", "configmaps"), event("delete", "configmaps", user="system:admin")],
        [event("patch", "configmaps"), event("delete", "configmaps", code=403, decision="forbid")],
        [event("patch", "configmaps"), event("delete", "configmaps", apiGroup="apps")],
    ],
    ids=["no request", "of another account", "refused", "of another group"],
)
def test_a_permission_without_a_request_is_found(log: list[dict[str, Any]]) -> None:
    assert Permission("", "configmaps", "delete") in unused(granted(RULES), requests_of(ACCOUNT, log))


def test_rights_that_end_with_a_namespace_are_not_missing() -> None:
    log = requests_of(ACCOUNT, [event("delete", "configmaps", 403, decision="forbid")])
    assert refused(log) == ["delete configmaps (/configmaps)"]
    assert refused(log, granted(RULES)) == []
    assert refused(requests_of(ACCOUNT, [event("get", "configmaps", 403, decision="forbid")]), granted(RULES))


def test_an_apply_that_changes_an_object_uses_no_create() -> None:
    found = unused(granted(RULES), requests_of(ACCOUNT, [event("patch", "configmaps", 200)]))
    assert Permission("", "configmaps", "create") in found
    assert Permission("", "configmaps", "patch") not in found


def test_a_permission_of_a_resource_is_not_one_of_its_subresource() -> None:
    log = [event("patch", "rlruns", apiGroup="rlrun.dev")]
    assert Permission("rlrun.dev", "rlruns/status", "patch") in unused(granted(RULES), requests_of(ACCOUNT, log))


def test_refused_requests_are_named() -> None:
    listed = event("list", "secrets", 403, decision="forbid")
    by_quota = event("patch", "configmaps", 403)
    log = [listed, event("get", "secrets"), listed, by_quota]
    assert refused(requests_of(ACCOUNT, log)) == ["list secrets (/secrets)"]


def test_requests_to_no_resource_need_no_permission() -> None:
    log: list[dict[str, Any]] = [{"verb": "get", "user": {"username": ACCOUNT}, "requestURI": "/version"}]
    assert requests_of(ACCOUNT, log) == []


def test_wildcards_are_refused() -> None:
    with pytest.raises(ValueError, match=r"patch \*.*Name the groups"):
        granted([{"apiGroups": [""], "resources": ["*"], "verbs": ["patch"]}])
