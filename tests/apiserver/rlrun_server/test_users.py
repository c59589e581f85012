"""Users at a real API server: tokens, the chart's roles, and the way through the API server's proxy."""

import base64
import json
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from rlrun.protocol.api_keys import KEYS_AUDIENCE, NewApiKey
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import AccessDenied, Store
from rlrun_cli.remote.api_keys import ApiKeys
from rlrun_cli.terminal.errors import CliError
from rlrun_operator.runtime.server_certificate import make_certificate
from rlrun_server.runtime.settings import ServerSettings

from local_cluster.control_plane.without_nodes import ControlPlane
from local_cluster.host.paths import paths
from local_cluster.tools.binaries import ensure_program
from tests.support.command_line import call
from tests.support.seaweedfs import S3Server
from tests.support.signing_server import KEY_SECRET, ObjectsOf, SigningServer, key_secret, reviews_of, signing_server

CHART = Path(__file__).parents[3] / "charts/rlrun"
FILES = {
    "metrics": "metrics/part-1.jsonl",
    "rollouts": "rollouts/step-000001.jsonl.zst",
    "logs": "logs/attempt-1/pod/trainer.log",
    "checkpoints": "checkpoints/step-000001/manifest.json",
    "adapters": "adapters/step-000001/manifest.json",
}
KUBERNETES = "1.35.4"
LINE = b'{"step": 1, "time": "t", "reward/mean": 0.5}\n'
RBAC = "rbac.authorization.k8s.io"
TOKEN_SECONDS = 6 * 3600
"""Longer than a level takes: the browser level shares its tokens, and took 15 minutes on a slow host."""


def chart_objects(namespace: str, template: str, *settings: str) -> list[dict[str, Any]]:
    """Return the objects of one template of the chart. `settings`: values as for `--set`."""
    values = ["--kube-version", KUBERNETES]
    for setting in ("s3.bucket=bucket", "s3.credentials.existingSecret=s", *settings):
        values += ["--set", setting]
    helm = [ensure_program("helm", paths()), "template", "rlrun", str(CHART), "-n", namespace]
    command = [*map(str, helm), *values, "-s", f"templates/{template}"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return [found for found in yaml.safe_load_all(text) if found]


@dataclass
class Accounts:
    """ServiceAccounts that stand for users."""

    api: client.ApiClient

    def make(self, namespace: str, name: str, role: str | None = None) -> str:
        """Create an account with this ClusterRole in its namespace, and return its token."""
        core = client.CoreV1Api(self.api)
        core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
        if role is not None:
            self.bind(namespace, name, role)
        return self.token(namespace, name)

    def bind(self, namespace: str, name: str, role: str) -> None:
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        client.RbacAuthorizationV1Api(self.api).create_namespaced_role_binding(namespace, binding)

    def token(self, namespace: str, name: str, *audiences: str) -> str:
        """Return a token of an account, by default one for the API server."""
        spec: dict[str, Any] = {"expirationSeconds": TOKEN_SECONDS}
        if audiences:
            spec["audiences"] = list(audiences)
        made = client.CoreV1Api(self.api).create_namespaced_service_account_token(name, namespace, {"spec": spec})
        return str(made.status.token)


@pytest.fixture
def roles(api: client.ApiClient) -> dict[str, str]:
    """The chart's roles of users, under names of the test's own."""
    suffix, names = uuid.uuid4().hex[:6], {}
    for found in chart_objects("rlrun-system", "user-roles.yaml"):
        kind = found["metadata"]["name"].removeprefix("rlrun-")
        if found["kind"] == "ClusterRole" and kind in ("editor", "viewer"):
            names[kind] = f"{kind}-{suffix}"
            body = {"metadata": {"name": names[kind]}, "rules": found["rules"]}
            client.RbacAuthorizationV1Api(api).create_cluster_role(body)
    return names


@pytest.fixture
def other(api: client.ApiClient) -> str:
    name = f"other-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})
    return name


@pytest.fixture
def server(api: client.ApiClient, s3_server: S3Server, tmp_path: Path) -> Iterator[SigningServer]:
    with signing_server(s3_server, tmp_path, ServerSettings(), reviews_of(api), host_address()) as running:
        yield running


@pytest.fixture
def encrypted_server(api: client.ApiClient, s3_server: S3Server, tmp_path: Path) -> Iterator[SigningServer]:
    """The server with TLS, as the chart installs it."""
    made = make_certificate("localhost", datetime.now(UTC))
    with signing_server(
        s3_server, tmp_path, ServerSettings(), reviews_of(api), host_address(), certificate=made
    ) as running:
        yield running


def host_address() -> str:
    """Return an address of this machine that is not a loopback one, as the API server's proxy demands."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def may_read(store: Store, uri: S3Uri) -> bool:
    try:
        store.get_bytes(uri)
    except (AccessDenied, CliError):
        # The second: the credential itself has ended.
        return False
    return True


def may_write(store: Store, uri: S3Uri, *, replace: bool) -> bool:
    try:
        store.put_bytes(uri, b"wheel", replace=replace)
    except AccessDenied:
        return False
    return True


def test_roles_decide_about_each_route(
    api: client.ApiClient, server: SigningServer, roles: dict[str, str], namespace: str, other: str
) -> None:
    bucket, run = server.s3.bucket, S3Uri(server.s3.bucket, f"{namespace}/uid-1")
    for name in FILES.values():
        server.s3.store().put_bytes(run / name, LINE)
    accounts = Accounts(api)
    users = {
        "editor": accounts.make(namespace, "ann", roles["editor"]),
        "viewer": accounts.make(namespace, "ben", roles["viewer"]),
        "nobody": accounts.make(namespace, "cid"),
        "other tenant": accounts.make(other, "ann", roles["editor"]),
    }
    package = S3Uri(bucket, f"environments/{namespace}/env/1.0")
    found = {}
    for user, token in users.items():
        store = server.user_store(token, namespace)
        found[user] = {folder for folder, name in FILES.items() if may_read(store, run / name)} | {
            word
            for word, is_allowed in {
                "push": may_write(store, package / f"{user.replace(' ', '-')}.whl", replace=False),
                "replace": may_write(store, package / "any.whl", replace=True),
                "forge": may_write(store, run / FILES["metrics"], replace=True),
            }.items()
            if is_allowed
        }
    assert found == {
        "editor": {*FILES, "push", "replace"},
        "viewer": set(FILES),
        "nobody": set(),
        "other tenant": set(),
    }


def test_tokens_of_pods_and_of_nobody_are_refused(api: client.ApiClient, server: SigningServer, namespace: str) -> None:
    accounts = Accounts(api)
    accounts.make(namespace, "run", "cluster-admin")
    for token in ("", "made-up", accounts.token(namespace, "run", "rlrun/uid-1/trainer")):
        with pytest.raises(CliError, match="does not accept the token"):
            server.user_store(token)
    assert server.user_store(accounts.token(namespace, "run")) is not None


def test_a_namespace_that_is_not_there_looks_like_one_of_others(
    api: client.ApiClient, server: SigningServer, roles: dict[str, str], namespace: str, other: str
) -> None:
    store = server.user_store(Accounts(api).make(namespace, "ann", roles["editor"]))
    messages = set()
    for place in (other, "never-made"):
        with pytest.raises(AccessDenied) as caught:
            store.get_bytes(S3Uri(server.s3.bucket, f"{place}/uid-1/metrics/x"))
        messages.add(str(caught.value).replace(place, "PLACE"))
    assert len(messages) == 1


def test_a_command_with_a_certificate_goes_through_the_api_server(
    api: client.ApiClient,
    encrypted_server: SigningServer,
    roles: dict[str, str],
    namespace: str,
    control_plane: ControlPlane,
) -> None:
    server, address = encrypted_server, host_address()
    if address == "127.0.0.1":
        pytest.skip("this machine has only loopback addresses, to which the API server passes no request")
    port = server.url.rpartition(":")[2]
    core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
    made = publish(api, namespace, address, int(port))
    body = {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {"name": "first"},
        "spec": {"model": "me/tiny", "maxSteps": 4, "sampling": {"maxTokens": 8}, "env": [{"id": "me/env"}]},
    }
    run = custom.create_namespaced_custom_object("rlrun.dev", "v1alpha1", namespace, "rlruns", body)
    uid = run["metadata"]["uid"]
    server.s3.store().put_bytes(S3Uri(server.s3.bucket, f"{namespace}/{uid}/{FILES['metrics']}"), LINE)
    words = ("--kubeconfig", control_plane.kubeconfig, "-n", namespace, "metrics", "first", "-o", "json")
    try:
        refused = call(*words)
        assert refused.code == 1
        assert f"kubectl create serviceaccount rlrun-user -n {namespace}" in " ".join(refused.err.split())
        Accounts(api).make(namespace, "rlrun-user")
        refused = call(*words)
        assert f"may not get rlruns/metrics in namespace {namespace}" in " ".join(refused.err.split())
        Accounts(api).bind(namespace, "rlrun-user", roles["viewer"])
        deadline = time.monotonic() + 60
        while (answer := call(*words)).code and time.monotonic() < deadline:
            time.sleep(0.5)  # a refusal is remembered for 5 s
        assert answer.code == 0, answer.err
        assert json.loads(answer.out)[0]["reward/mean"] == 0.5
    finally:
        core.delete_namespaced_config_map(made, "kube-public")


def publish(api: client.ApiClient, namespace: str, address: str, port: int) -> str:
    """Create the chart's ConfigMap and the Service that it names. Returns the ConfigMap's name."""
    core = client.CoreV1Api(api)
    (found,) = [o for o in chart_objects(namespace, "server-discovery.yaml") if o["kind"] == "ConfigMap"]
    core.create_namespaced_config_map("kube-public", found)
    ports = [{"name": found["data"]["service"].rpartition(":")[2], "port": port}]
    meta = {"name": "rlrun-server"}
    core.create_namespaced_service(namespace, {"metadata": meta, "spec": {"ports": ports}})
    # The API server passes requests to addresses of pods only.
    container = {"name": "server", "image": "none"}
    core.create_namespaced_pod(namespace, {"metadata": meta, "spec": {"containers": [container]}})
    core.patch_namespaced_pod_status(
        "rlrun-server", namespace, {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
    )
    pod = {"kind": "Pod", "name": "rlrun-server", "namespace": namespace}
    subset = {"addresses": [{"ip": address, "targetRef": pod}], "ports": ports}
    core.create_namespaced_endpoints(namespace, {"metadata": meta, "subsets": [subset]})
    return str(found["metadata"]["name"])


def test_an_api_key_has_the_rights_of_its_account(
    api: client.ApiClient,
    s3_server: S3Server,
    tmp_path: Path,
    roles: dict[str, str],
    namespace: str,
    other: str,
) -> None:
    accounts = Accounts(api)
    accounts.make(namespace, "rlrun-user", roles["viewer"])
    manager = f"key-manager-{uuid.uuid4().hex[:6]}"
    rule = {"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}
    body = {"metadata": {"name": manager}, "rules": [{**rule, "resourceNames": ["rlrun-user"]}]}
    client.RbacAuthorizationV1Api(api).create_cluster_role(body)
    admin, editor = accounts.make(namespace, "ann", manager), accounts.make(namespace, "ben", roles["editor"])
    file = S3Uri(s3_server.bucket, f"{namespace}/uid-1/{FILES['metrics']}")
    s3_server.store().put_bytes(file, LINE)
    s3_server.store().put_bytes(S3Uri(file.bucket, f"{other}/uid-1/{FILES['metrics']}"), LINE)
    client.CoreV1Api(api).create_namespaced_secret(other, key_secret(other))
    with signing_server(
        s3_server,
        tmp_path,
        ServerSettings(),
        reviews_of(api),
        cluster=ObjectsOf(api),
        platform_namespace=other,
    ) as server:
        keys = ApiKeys(server.send_as(admin), namespace)
        made = keys.create(NewApiKey(description="CI"))
        for refusing in (ApiKeys(server.send_as(editor), namespace), ApiKeys(server.send_as(admin), other)):
            with pytest.raises(AccessDenied, match="may not create tokens for ServiceAccount rlrun-user"):
                refusing.create(NewApiKey())
        stored = client.CoreV1Api(api).read_namespaced_secret(KEY_SECRET, other).data
        assert list(stored) == [made.id]
        assert made.key[17:] not in base64.b64decode(stored[made.id]).decode()
        proof = accounts.token(namespace, "rlrun-user", KEYS_AUDIENCE)
        assert [key.id for key in ApiKeys(server.send_as(proof), namespace).list()] == [made.id]
        without_right = accounts.token(namespace, "rlrun-user")
        not_accepted = accounts.token(namespace, "ben", KEYS_AUDIENCE)
        with pytest.raises(AccessDenied):
            ApiKeys(server.send_as(without_right), namespace).list()
        with pytest.raises(CliError, match="does not accept"):
            ApiKeys(server.send_as(not_accepted), namespace).list()

        store = server.user_store(made.key)
        assert store.get_bytes(file) == LINE
        assert not may_read(store, S3Uri(file.bucket, f"{other}/uid-1/{FILES['metrics']}"))
        package = S3Uri(file.bucket, f"environments/{namespace}/package/1.0/any.whl")
        assert not may_write(store, package, replace=False)
        with pytest.raises(client.ApiException) as caught:
            client.CoreV1Api(with_token(api, made.key)).list_namespaced_pod(namespace)
        assert caught.value.status == 401

        assert keys.delete(made.id).id == made.id
        assert keys.list() == []
        deadline = time.monotonic() + 60
        while may_read(store, file) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert not may_read(store, file)


def with_token(api: client.ApiClient, token: str) -> client.ApiClient:
    """Return a client of the same API server with this token only."""
    settings = client.Configuration(host=api.configuration.host)
    settings.ssl_ca_cert = api.configuration.ssl_ca_cert
    settings.api_key = {"authorization": f"Bearer {token}"}
    return client.ApiClient(settings)
