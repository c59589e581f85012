import base64

import pytest
from rlrun.kube.errors import ApiError
from rlrun_operator.config.settings import EgressSettings, SecretRef
from rlrun_operator.controller.egress_observer import EgressObserver, allowed_hosts

from tests.support.fake_cluster import FakeCluster

SETTINGS = EgressSettings(host="proxy", key_secret=SecretRef(namespace="rlrun-system", name="egress"))


def cluster(key: bytes | None, annotation: str | None) -> FakeCluster:
    found = FakeCluster()
    if key is not None:
        data = {"key": base64.b64encode(key).decode()}
        metadata = {"name": "egress", "namespace": "rlrun-system"}
        found.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    annotations = {} if annotation is None else {"rlrun.dev/egress": annotation}
    found.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "annotations": annotations}})
    return found


async def test_key_and_hosts_of_the_namespace_are_read() -> None:
    observer = EgressObserver(cluster(b"k" * 32, "a.org, *.b.org:8443").kube, SETTINGS)
    assert await observer.observe("team") == {"egress_key": b"k" * 32, "egress_hosts": ("a.org", "*.b.org:8443")}


@pytest.mark.parametrize("key", [None, b"short"])
async def test_a_missing_or_short_key_is_none(key: bytes | None) -> None:
    found = await EgressObserver(cluster(key, None).kube, SETTINGS).observe("team")
    assert (found["egress_key"], found["egress_hosts"]) == (None, ())
    assert found["egress_problem"].reason == "EgressUnavailable"
    assert "Secret rlrun-system/egress" in found["egress_problem"].message


async def test_a_missing_right_is_a_problem_of_the_run_and_no_failed_reconcile() -> None:
    """An operator with a role of the installation's own may lack `get` on namespaces."""
    fake = cluster(b"k" * 32, "a.org")
    fake.answers["get Namespace team"] = [ApiError(403, "Forbidden", "namespaces is forbidden")]
    found = await EgressObserver(fake.kube, SETTINGS).observe("team")
    assert found["egress_key"] is None
    assert "namespaces is forbidden" in found["egress_problem"].message


async def test_an_error_that_may_pass_is_raised() -> None:
    fake = cluster(b"k" * 32, "a.org")
    fake.answers["get Namespace team"] = [ApiError(503, "ServiceUnavailable", "later")]
    with pytest.raises(ApiError):
        await EgressObserver(fake.kube, SETTINGS).observe("team")


async def test_nothing_is_read_without_a_proxy() -> None:
    assert await EgressObserver(FakeCluster().kube, None).observe("team") == {}


def test_invalid_hosts_of_an_annotation_allow_nothing() -> None:
    assert allowed_hosts("a.org,,*,https://b.org, c.org:0,*.com ,localhost") == ("a.org",)
    assert allowed_hosts(None) == ()
