"""How commands find rlrun-server and prove who sends them, against the real server and S3."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP, RLRUN
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.api_keys import NewApiKey
from rlrun.storage.layout import S3Uri
from rlrun_cli.remote.api_keys import ApiKeys
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import CliContext
from rlrun_cli.remote.server import PROBE_PATH
from rlrun_cli.remote.user_token import UserToken
from rlrun_cli.terminal.errors import CliError
from typing_extensions import override

from tests.support.command_line import Answer, call
from tests.support.fake_cluster import FakeCluster
from tests.support.seaweedfs import S3Server
from tests.support.signing_server import SigningServer, signing_server, token_of
from tests.support.sync_fake_transport import SyncFakeTransport
from tests.unit.rlrun_cli.conftest import TEAM, custom_object

PERMISSION = f"get rlruns/metrics in {TEAM}"
ENVIRONMENT = Path(__file__).parents[4] / "examples/environments/reverse_text"
LINE = '{"step": 1, "time": "t", "reward/mean": 0.5}\n'


class ApiServer(FakeCluster):
    """An API server that passes requests to the Service of a server, and gives tokens of ServiceAccounts."""

    url = ""
    accounts: tuple[str, ...] = ()
    refusal: ApiError | None = None

    @override
    async def send(self, request: KubeRequest) -> Obj:
        if request.subresource == "token":
            self.requests.append(request)
            if f"{request.namespace}/{request.name}" not in self.accounts:
                raise ApiError(404, "NotFound", f"serviceaccounts {request.name!r} not found")
            end = datetime.now(UTC) + timedelta(seconds=600)
            audiences = (request.body or {})["spec"].get("audiences")
            token = token_of(str(request.namespace), audiences[0], "rlrun-user") if audiences else ""
            token = token or f"token-of-{request.namespace}"
            return {"status": {"token": token, "expirationTimestamp": end.isoformat()}}
        if (request.subresource or "").startswith("proxy/"):
            self.requests.append(request)
            assert (request.namespace, request.name) == ("rlrun-system", "https:rlrun-server:https")
            if self.refusal:
                raise self.refusal
            kept = {name: value for name, value in request.headers.items() if name != "Authorization"}
            path = (request.subresource or "").removeprefix("proxy")
            body = None if request.body is None else json.dumps(request.body)
            answer = urllib3.request(request.method, self.url + path, body=body, headers=kept)  # noqa: ASYNC210
            if answer.status not in (200, 201):
                raise ApiError.from_response(answer.status, answer.data)
            return dict(answer.json())
        return await super().send(request)


@pytest.fixture
def server(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SigningServer]:
    with signing_server(s3_server, tmp_path) as running:
        s3_server.store().put_bytes(S3Uri(s3_server.bucket, f"{TEAM}/uid-first/metrics/part-1.jsonl"), LINE.encode())
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a key that S3 does not know")
        yield running


@pytest.fixture
def cluster(server: SigningServer) -> ApiServer:
    """A cluster with a run and the discovery of the chart, which names the Service."""
    found = ApiServer(custom_object(RLRUN, "first", status={"phase": "Completed"}))
    found.url = server.url
    found.put(discovery(service="rlrun-system/https:rlrun-server:https"))
    return found


def discovery(**data: str) -> Obj:
    metadata = {"name": "rlrun-server", "namespace": "kube-public"}
    return {"apiVersion": "v1", "kind": CONFIG_MAP.kind, "metadata": metadata, "data": data}


def proxied(cluster: FakeCluster) -> int:
    """Return the number of requests to the server, without the short one that precedes them."""
    places = [request.subresource or "" for request in cluster.requests]
    return sum(place.startswith("proxy/") and place != f"proxy{PROBE_PATH}" for place in places)


def rlrun(cluster: FakeCluster, token: str, *words: object, **variables: str) -> Answer:
    """Run a command with a kubeconfig that has this token."""

    def connect(*_: Any) -> RemoteCluster:
        return RemoteCluster(lambda seconds: SyncFakeTransport(cluster), TEAM, lambda: token)

    return call(*words, context=CliContext(connect=connect), env={"RLRUN_SERVER": None, **variables})


def test_the_token_of_the_kubeconfig_goes_through_the_api_server(cluster: ApiServer, server: SigningServer) -> None:
    answer = rlrun(cluster, server.user("ann", PERMISSION), "metrics", "first", "-o", "json")
    assert json.loads(answer.out)[0]["reward/mean"] == 0.5, answer.err
    refused = rlrun(cluster, server.user("ben"), "metrics", "first")
    assert refused.code == 1
    assert "User ben may not get rlruns/metrics in namespace team" in " ".join(refused.err.split())
    assert "Next:  ask for the `edit` role" in refused.err


def test_a_url_is_used_directly(cluster: ApiServer, server: SigningServer) -> None:
    token = server.user("ann", PERMISSION)
    cluster.refusal = ApiError(403, "Forbidden", "not through here")
    for arguments, variables in ((["--server", server.url], {}), ([], {"RLRUN_SERVER": server.url})):
        answer = rlrun(cluster, token, "metrics", "first", "-o", "name", *arguments, **variables)
        assert answer.out == "reward/mean\n", answer.err
    cluster.put(discovery(url=server.url, service="rlrun-system/https:rlrun-server:https"))
    assert rlrun(cluster, token, "metrics", "first", "-o", "name").out == "reward/mean\n"


def test_a_certificate_is_replaced_by_a_token_of_the_namespace(cluster: ApiServer, server: SigningServer) -> None:
    refused = rlrun(cluster, "", "metrics", "first")
    text = " ".join(refused.err.split())
    assert refused.code == 1
    assert "kubectl create serviceaccount rlrun-user -n team" in text
    assert "--serviceaccount=team:rlrun-user -n team" in text
    cluster.accounts = ("team/rlrun-user",)
    server.api.users["token-of-team"] = "system:serviceaccount:team:rlrun-user"
    server.api.permissions.add(("system:serviceaccount:team:rlrun-user", PERMISSION))
    assert rlrun(cluster, "", "metrics", "first", "-o", "name").out == "reward/mean\n"


def test_who_may_not_make_a_token_is_told_which_right_is_missing(cluster: ApiServer) -> None:
    class Refusing(SyncFakeTransport):
        @override
        def send(self, request: KubeRequest) -> Obj:
            raise ApiError(403, "Forbidden", "cannot create serviceaccounts/token")

    with pytest.raises(CliError) as caught:
        UserToken(RemoteCluster(lambda seconds: Refusing(cluster), TEAM))()
    assert "--verb=create --resource=serviceaccounts/token --resource-name=rlrun-user" in caught.value.details[0]


def test_a_token_is_made_again_before_it_ends(cluster: ApiServer) -> None:
    cluster.accounts = ("team/rlrun-user",)
    now = [datetime.now(UTC).timestamp()]
    remote = RemoteCluster(lambda seconds: SyncFakeTransport(cluster), TEAM)
    token = UserToken(remote, clock=lambda: now[0])
    asked = []
    for _ in range(3):
        token()
        asked.append(sum(request.subresource == "token" for request in cluster.requests))
        now[0] += 300
    assert asked == [1, 1, 2]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--server", "http://rlrun.example.com"], 2, "without TLS"),
        (["--server", "rlrun.example.com"], 2, "is not a URL"),
    ],
)
def test_a_url_that_gives_the_token_away_is_refused(
    cluster: ApiServer, words: list[str], code: int, message: str
) -> None:
    answer = rlrun(cluster, "token", "metrics", "first", *words)
    assert answer.code == code
    assert message in answer.err


def test_an_unknown_server_names_the_ways(cluster: ApiServer) -> None:
    del cluster.objects["ConfigMap", "kube-public", "rlrun-server"]
    answer = rlrun(cluster, "token", "metrics", "first")
    assert answer.code == 2
    for way in ("--server", "RLRUN_SERVER", "kube-public"):
        assert way in answer.err


def test_a_server_out_of_reach_names_the_next_step(
    cluster: ApiServer, server: SigningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun_cli.remote.server.BACKOFF", 0.0)
    cluster.refusal = ApiError(403, "Forbidden", "user ann cannot create services/proxy")
    answer = rlrun(cluster, "token", "metrics", "first")
    assert "kubectl port-forward -n rlrun-system deployment/rlrun-server 8080" in " ".join(answer.err.split())
    cluster.refusal = ApiError(503, "ServiceUnavailable", "no endpoints available for service")
    answer = rlrun(cluster, "token", "metrics", "first")
    assert "no endpoints available" in answer.err
    assert proxied(cluster) == 1 + 4
    answer = rlrun(cluster, "token", "metrics", "first", "--server", "http://127.0.0.1:9")
    assert "does not respond at http://127.0.0.1:9" in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("status", "reason", "asks_for_role"),
    [
        (403, "AccessForbidden", True),
        (404, "NamespaceNotFound", True),
        (404, "ObjectNotFound", False),
        (409, "ApiKeyLimitReached", False),
        (422, "InvalidRequest", False),
    ],
)
def test_a_role_is_asked_for_only_if_a_right_is_missing(
    cluster: ApiServer, status: int, reason: str, asks_for_role: bool
) -> None:
    cluster.refusal = ApiError(status, reason, "Namespace other has no runs that you may list.")
    answer = rlrun(cluster, "token", "usage", "-n", "other")
    text = " ".join(answer.err.split())
    assert answer.code == 1
    assert "Namespace other has no runs that you may list." in text
    assert "check --server" not in text, "what does not exist is not a wrong URL"
    assert ("ask for the `edit` role" in text) is asks_for_role, text


# --- API keys ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(server: SigningServer) -> str:
    """Token of a user who may make API keys of the namespace."""
    server.api.add_account(TEAM)
    server.api.permissions.add((f"system:serviceaccount:{TEAM}:rlrun-user", PERMISSION))
    return server.user("ann", f"create serviceaccounts/token rlrun-user in {TEAM}")


def test_a_key_is_made_used_listed_and_deleted_through_the_api_server(cluster: ApiServer, admin: str) -> None:
    assert "No API keys in namespace team" in rlrun(cluster, admin, "key", "list").err
    made = rlrun(cluster, admin, "key", "create", "--description", "CI", "--days", "7")
    assert made.code == 0, made.err
    key = made.out.strip()
    key_id = key.split("_")[1]
    assert key_id in made.err
    assert key not in made.err

    used = rlrun(cluster, "a token that nobody knows", "metrics", "first", "-o", "name", RLRUN_API_KEY=key)
    assert used.out == "reward/mean\n", used.err

    listed = rlrun(cluster, admin, "key", "list")
    assert all(word in listed.out for word in (key_id, "CI", "ann"))
    assert key[17:] not in listed.out
    assert [k["id"] for k in json.loads(rlrun(cluster, admin, "key", "list", "-o", "json").out)] == [key_id]
    assert rlrun(cluster, admin, "key", "list", "-o", "name").out == f"{key_id}\n"

    refused = rlrun(cluster, "", "key", "list", RLRUN_API_KEY=key)
    assert refused.code == 1
    assert "Send a Kubernetes token instead" in " ".join(refused.err.split())

    assert rlrun(cluster, admin, "key", "delete", key_id).out == f"API key {key_id} deleted\n"
    again = rlrun(cluster, admin, "key", "delete", key_id)
    assert again.code == 1
    assert f"has no API key '{key_id}'" in " ".join(again.err.split())


def test_who_has_a_certificate_manages_keys_of_an_account_with_few_rights(
    cluster: ApiServer, server: SigningServer
) -> None:
    server.api.add_account(TEAM)
    cluster.accounts = (f"{TEAM}/rlrun-user",)
    made = rlrun(cluster, "", "key", "create")
    assert made.code == 0, made.err
    assert made.out.split("_")[1] in rlrun(cluster, "", "key", "list", "-o", "name").out


def test_a_whole_key_names_the_key_to_delete_and_is_not_sent(cluster: ApiServer, admin: str) -> None:
    key = rlrun(cluster, admin, "key", "create").out.strip()
    cluster.requests.clear()
    assert rlrun(cluster, admin, "key", "delete", key).out == f"API key {key.split('_')[1]} deleted\n"
    assert not [request for request in cluster.requests if key[17:] in str(request.subresource)]
    refused = rlrun(cluster, admin, "key", "delete", f"{key}x")
    assert refused.code == 2
    assert key[17:] not in refused.err


@pytest.mark.parametrize("change", ["{}\nmore", "Created key\n{}", "{}x", "secret"])
def test_a_broken_key_is_named_and_not_shown(cluster: ApiServer, admin: str, change: str) -> None:
    key = rlrun(cluster, admin, "key", "create").out.strip()
    refused = rlrun(cluster, "", "metrics", "first", RLRUN_API_KEY=change.format(key))
    assert refused.code == 2
    assert "the value of RLRUN_API_KEY (" in refused.err
    assert key[17:] not in refused.err


def test_a_request_that_changes_something_is_sent_once(
    cluster: ApiServer, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun_cli.remote.server.BACKOFF", 0.0)
    cluster.refusal = ApiError(503, "ServiceUnavailable", "try again")
    for words, sent in ((("create",), 1), (("delete", "a" * 12), 1), (("list",), 4)):
        cluster.requests.clear()
        assert rlrun(cluster, admin, "key", *words).code == 1
        assert proxied(cluster) == sent


def test_wrong_values_of_a_key_are_named(cluster: ApiServer, admin: str) -> None:
    for words in (("--days", "0"), ("--days", "1000"), ("--description", "x" * 201), ("--description", "a\nb")):
        answer = rlrun(cluster, admin, "key", "create", *words)
        assert answer.code == 2
        assert words[0] in answer.err


def test_a_key_pushes_a_package_without_a_kubeconfig(
    server: SigningServer, admin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.api.permissions.add((f"system:serviceaccount:{TEAM}:rlrun-user", f"create rlenvironments in {TEAM}"))
    key = ApiKeys(server.send_as(admin), TEAM).create(NewApiKey()).key
    monkeypatch.setenv("HOME", str(tmp_path))
    variables = {"KUBECONFIG": None, "KUBERNETES_SERVICE_HOST": None, "RLRUN_API_KEY": key}
    pushed = call("env", "push", ENVIRONMENT, "--owner", TEAM, "--server", server.url, env=variables)
    assert pushed.code == 0, pushed.err
    assert pushed.out == f"{TEAM}/reverse-text\n"
    for words in (("list",), ("env", "push", ENVIRONMENT, "--owner", TEAM)):
        refused = call(*words, env={**variables, "RLRUN_SERVER": None})
        assert refused.code == 2
        assert "no kubeconfig was found" in " ".join(refused.err.split())
