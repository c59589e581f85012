"""`rlrun login` with a client certificate, at a real API server and a real rlrun-server."""

import json
import uuid
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.docs.conftest import World, orchestrators, own_bench, world
from tests.apiserver.rlrun_server.test_hosted_clients import server, users_role
from tests.apiserver.rlrun_server.test_users import Accounts
from tests.support.command_line import Answer, call
from tests.support.seaweedfs import S3Server

__all__ = ["orchestrators", "own_bench", "server", "users_role", "world"]


@pytest.fixture
def s3_server(s3_server: S3Server) -> S3Server:
    """The S3 of all tests with a bucket of the test's own: users see all public environments."""
    return s3_server.with_bucket(f"login-{uuid.uuid4().hex[:8]}")


@pytest.mark.slow
def test_a_login_makes_a_key_that_works_until_the_logout(
    world: World,
    server: str,
    api: client.ApiClient,
    users_role: str,
    control_plane: ControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace = world.bench.namespace
    Accounts(api).make(namespace, "rlrun-user", users_role)
    kubeconfig = tmp_path / "kubeconfig"
    found = yaml.safe_load(control_plane.kubeconfig.read_text())
    assert "client-certificate-data" in found["users"][0]["user"], "this user has no token"
    found["contexts"][0]["context"]["namespace"] = namespace
    kubeconfig.write_text(yaml.safe_dump(found))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("RLRUN_SERVER", raising=False)

    def rlrun(*words: object) -> Answer:
        return call(*words, "--kubeconfig", kubeconfig)

    user = f"system:serviceaccount:{namespace}:rlrun-user"
    answer = rlrun("login", "--server", server, "--days", 1)
    assert (answer.code, answer.out) == (0, f"logged in as {user}\n"), answer.err
    identity = json.loads(rlrun("whoami", "-o", "json").out)
    assert (identity["name"], identity["namespace"]) == (user, namespace)
    assert rlrun("env", "list", "-o", "json").out == "[]\n"
    assert rlrun("usage", "-o", "json").code == 0
    assert rlrun("logout").out == "logged out\n"
    listed = rlrun("key", "list", "--server", server, "-o", "json")
    assert listed.out == "[]\n", listed.err
