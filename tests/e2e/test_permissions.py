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
}
"""Permissions that this cluster's log cannot show, and why they are needed."""


def rules(platform: Platform) -> list[dict[str, Any]]:
    roles = (
        ("clusterrole", f"{RELEASE}-operator"),
        ("role", f"{RELEASE}-leader", "-n", SYSTEM_NAMESPACE),
    )
    return [rule for role in roles for rule in json.loads(platform.kubectl("get", *role, "-o", "json"))["rules"]]


def test_the_operator_uses_all_of_its_permissions_and_needs_no_other(platform: Platform) -> None:
    state = paths().state
    if not audit.log_file(state).exists():
        pytest.skip("this cluster keeps no audit log: only the embedded one does (RLRUN_CLUSTER=embedded)")
    requests = requests_of(f"system:serviceaccount:{SYSTEM_NAMESPACE}:{RELEASE}", audit.read_events(state))
    assert refused(requests) == []
    spare = [str(p) for p in unused(granted(rules(platform)), requests) if p not in SEEN_ELSEWHERE]
    assert spare == [], "never used since the cluster came up. If other tests of this level did not run, run them first"
