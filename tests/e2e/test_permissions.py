"""Permissions of the platform's accounts against what they asked the API server for, over the whole level.

It comes last (see `pytest_collection_modifyitems` in conftest.py): the audit log then has all requests since the
cluster came up.
"""

import json
from typing import Any

import pytest

from demo.install import RELEASE, SYSTEM_NAMESPACE
from local_cluster.control_plane import audit
from local_cluster.host.paths import paths
from tests.e2e.conftest import Platform
from tests.support.account_permissions import Permission, granted, refused, requests_of, unused

pytestmark = pytest.mark.alone

SEEN_ELSEWHERE = {
    Permission("rlrun.dev", "rlruns/finalizers", "update"): "asked by an admission plugin that is off here",
    **{
        Permission("", "persistentvolumeclaims", verb): "for models with a cache: "
        "tests/apiserver/rlrun_operator/test_weights_cache.py"
        for verb in ("create", "patch", "delete")
    },
    Permission("", "pods", "delete"): "for pods of a lost node: tests/apiserver/rlrun_operator/test_lost_nodes.py",
    Permission("", "events", "list"): "for pods without containers: tests/apiserver/rlrun_operator/test_pod_events.py",
    Permission("rbac.authorization.k8s.io", "rolebindings", "delete"): "for namespaces that lose the label: "
    "tests/apiserver/chart/test_tenants.py",
    Permission("rbac.authorization.k8s.io", "clusterroles", "bind"): "compared when a RoleBinding is created",
    Permission("", "secrets", "patch"): "for a certificate that ends, too: tests/unit/rlrun_operator/runtime/"
    "test_server_certificate.py",
    Permission("", "nodes", "get"): "for pods that a taint evicts: tests/apiserver/rlrun_operator/test_lost_nodes.py",
}
"""Permissions that this cluster's log cannot show, and why they are needed."""


ROLES = {
    RELEASE: (
        ("clusterrole", f"{RELEASE}-operator"),
        ("clusterrole", f"{RELEASE}-operator-tenant"),
        ("role", f"{RELEASE}-leader", "-n", SYSTEM_NAMESPACE),
        ("role", f"{RELEASE}-operator-secrets", "-n", SYSTEM_NAMESPACE),
    ),
    f"{RELEASE}-server": (
        ("clusterrole", f"{RELEASE}-server"),
        ("clusterrole", f"{RELEASE}-server-tenant"),
        ("role", f"{RELEASE}-server", "-n", SYSTEM_NAMESPACE),
    ),
}
"""Roles by ServiceAccount of the platform's namespace."""
OF_TENANTS = {RELEASE: f"{RELEASE}-operator-tenant", f"{RELEASE}-server": f"{RELEASE}-server-tenant"}
"""Those among them that are bound in namespaces of tenants."""


def rules(platform: Platform, roles: tuple[tuple[str, ...], ...]) -> list[dict[str, Any]]:
    return [rule for role in roles for rule in json.loads(platform.kubectl("get", *role, "-o", "json"))["rules"]]


@pytest.mark.parametrize("account", ROLES)
def test_an_account_uses_all_of_its_permissions_and_needs_no_other(platform: Platform, account: str) -> None:
    state = paths().state
    if not audit.log_file(state).exists():
        pytest.skip("this cluster keeps no audit log: only the embedded one does (RLRUN_CLUSTER=embedded)")
    requests = requests_of(f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}", audit.read_events(state))
    in_tenants = rules(platform, (("clusterrole", OF_TENANTS[account]),))
    assert refused(requests, granted(in_tenants)) == []
    spare = [str(p) for p in unused(granted(rules(platform, ROLES[account])), requests) if p not in SEEN_ELSEWHERE]
    assert spare == [], "never used since the cluster came up. If other tests of this level did not run, run them first"
