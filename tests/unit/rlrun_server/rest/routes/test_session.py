"""Login and logout of browsers, and what a cookie is accepted for."""

import json
import logging
import random
import string
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from rlrun.kube.errors import ApiError
from rlrun_server.authentication.oidc_issuer import OidcIssuer
from rlrun_server.authentication.oidc_login import LOGIN_SECONDS, OidcLogin
from rlrun_server.authentication.sealed import Sealer
from rlrun_server.authentication.sessions import ATTEMPTS, CODE_SECONDS, ISSUER_LOGINS, SESSION_SECONDS
from rlrun_server.runtime.oidc_settings import OidcSettings
from rlrun_server.runtime.rate_limit import RateLimiter

from tests.support.json_web_tokens import json_web_token
from tests.support.oidc_issuer_stub import CLIENT, SECRET, OidcIssuerStub, oidc_issuer_stub
from tests.support.rest_api import RestApi, rest_api, run_object
from tests.support.signing_server import KEY

START = 1_000_000_000


@dataclass
class Times:
    now: float = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def times() -> Times:
    return Times()


@pytest.fixture
def api(times: Times) -> RestApi:
    found = rest_api(clock=times, now=times)
    found.add(run_object("first"))
    return found


@pytest.fixture
def page() -> dict[str, str]:
    """Headers of the page of a server with TLS."""
    return {"X-Rlrun": "1", "Origin": "https://server", "Sec-Fetch-Site": "same-origin"}


async def log_in(api: RestApi, page: dict[str, str], token: str) -> httpx.Response:
    return await api.client.post("/session", json={"token": token}, headers=page)


def cookie_of(answer: httpx.Response) -> str:
    """Return the cookie as a browser sends it."""
    assert answer.status_code == 200, answer.text
    return answer.headers["set-cookie"].partition(";")[0]


async def session_of(api: RestApi, page: dict[str, str], name: str, *permissions: str) -> dict[str, str]:
    """Return the headers of a user who has logged in."""
    api.user(name, *permissions)
    return {**page, "Cookie": cookie_of(await log_in(api, page, f"token-of-{name}"))}


async def test_a_session_reads_with_the_rights_of_its_user(api: RestApi, page: dict[str, str]) -> None:
    ann = await session_of(api, page, "ann", "list rlruns in team", "get rlruns in team")
    bob = await session_of(api, page, "bob")
    assert (await api.client.get("/whoami", headers=ann)).json()["name"] == "ann"
    assert (await api.client.get("/namespaces/team/runs/first", headers=ann)).status_code == 200
    assert (await api.client.get("/namespaces/team/runs/first", headers=bob)).status_code == 404
    found = (await api.client.get("/session", headers=ann)).json()
    assert (found["identity"]["name"], found["expires"]) == ("ann", "2001-09-09T09:46:40Z")


async def test_scripts_and_other_hosts_do_not_get_the_cookie(api: RestApi, page: dict[str, str]) -> None:
    api.user("ann")
    attributes = (await log_in(api, page, "token-of-ann")).headers["set-cookie"].split("; ")
    assert attributes[0].startswith("__Host-rlrun-session=")
    assert {part.lower() for part in attributes[1:]} == {
        "httponly", "path=/", "samesite=strict", "secure", f"max-age={SESSION_SECONDS}",
    }  # fmt: skip
    assert "token-of-ann" not in attributes[0]


async def test_without_tls_only_this_machine_gets_a_cookie(api: RestApi) -> None:
    api.user("ann")
    own = {"X-Rlrun": "1", "Host": "localhost:8080", "Origin": "http://localhost:8080"}
    cookie = (await log_in(api, own, "token-of-ann")).headers["set-cookie"]
    assert cookie.startswith("rlrun-session=")
    assert "secure" not in cookie.lower()
    headers = {**own, "Cookie": cookie.partition(";")[0]}
    assert (await api.client.get("/whoami", headers=headers)).status_code == 200
    network = {"X-Rlrun": "1", "Origin": "http://server"}
    refused = await log_in(api, network, "token-of-ann")
    assert (refused.status_code, refused.json()["reason"]) == (403, "ConnectionNotEncrypted")
    # A cookie that another host of the domain could set counts on this machine alone.
    planted = {"Cookie": cookie.partition(";")[0]}
    assert (await api.client.get("/whoami", headers=planted)).status_code == 401


@pytest.mark.parametrize(
    "missing",
    [
        {"X-Rlrun": ""},
        {"Origin": "https://evil.org"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_other_sites_do_nothing_with_the_cookie(
    api: RestApi, page: dict[str, str], missing: dict[str, str]
) -> None:
    ann = await session_of(api, page, "ann", "list rlruns in team", "patch rlruns in team", "get rlruns in team")
    headers = {**ann, **missing}
    for method, path in (
        ("POST", "/namespaces/team/runs/first:stop"),
        ("DELETE", "/namespaces/team/runs/first"),
        ("PUT", "/namespaces/team/secrets/judge"),
        ("PATCH", "/namespaces/team/runs/first"),
        ("DELETE", "/session"),
        ("POST", "/session"),
    ):
        body = {"json": {"token": "token-of-ann"}} if path == "/session" and method == "POST" else {}
        answer = await api.client.request(method, path, headers=headers, **body)
        assert (answer.status_code, answer.json()["reason"]) == (403, "CrossSiteRequest"), path
        assert "set-cookie" not in answer.headers
    assert not [request for request in api.cluster.requests if request.verb.value not in ("get", "list", "watch")]


async def test_no_site_is_allowed_to_read_answers(api: RestApi, page: dict[str, str]) -> None:
    ann = await session_of(api, page, "ann")
    origin = {"Origin": "https://evil.org", "Access-Control-Request-Method": "POST"}
    for answer in (
        await api.client.get("/whoami", headers={**ann, **origin}),
        await api.client.options("/whoami", headers=origin),
        await api.client.options("/session", headers=origin),
        await log_in(api, {**page, **origin}, "token-of-ann"),
    ):
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


async def test_a_header_comes_before_the_cookie(api: RestApi, page: dict[str, str]) -> None:
    ann = await session_of(api, page, "ann")
    bob = api.user("bob")
    assert (await api.client.get("/whoami", headers={**ann, **bob})).json()["name"] == "bob"
    # Programs are no browsers: their requests need no header of the page.
    answer = await api.client.post("/session:code", headers={**bob, "Cookie": ann["Cookie"]})
    assert answer.status_code == 200


async def test_a_session_ends(api: RestApi, page: dict[str, str], times: Times) -> None:
    ann = await session_of(api, page, "ann")
    times.now += SESSION_SECONDS - 1
    assert (await api.client.get("/whoami", headers=ann)).status_code == 200
    times.now += 2
    assert (await api.client.get("/whoami", headers=ann)).status_code == 401


async def test_a_session_ends_with_its_token(api: RestApi, page: dict[str, str], times: Times) -> None:
    token = json_web_token(exp=START + 600)
    api.api.users[token] = "ann"
    answer = await log_in(api, page, token)
    assert "Max-Age=600" in answer.headers["set-cookie"]
    ann = {**page, "Cookie": cookie_of(answer)}
    del api.api.users[token]
    times.now += 61  # reviews count for a minute
    assert (await api.client.get("/whoami", headers=ann)).status_code == 401


@pytest.mark.parametrize("end", ['"x"', "null", "[]", "1e999", "-1", '"9' + "9" * 5000 + '"'])
async def test_a_token_with_an_odd_end_is_refused_or_has_a_session(
    api: RestApi, page: dict[str, str], end: str
) -> None:
    token = json_web_token(exp=json.loads(end) if end != "1e999" else float("inf"))
    api.api.users[token] = "ann"
    assert (await log_in(api, page, token)).status_code == 200


async def test_logout_deletes_the_cookie(api: RestApi, page: dict[str, str]) -> None:
    ann = await session_of(api, page, "ann")
    for headers in (ann, page):
        answer = await api.client.delete("/session", headers=headers)
        assert answer.status_code == 204
        assert answer.headers["set-cookie"].startswith('__Host-rlrun-session=""; HttpOnly; Max-Age=0')


@pytest.mark.parametrize("cookie", ["x", "=", "a" * 4000, "rlrun-session=x; __Host-rlrun-session=y", "é", '"'])
async def test_a_forged_cookie_opens_nothing(api: RestApi, page: dict[str, str], cookie: str) -> None:
    headers = {**page, "Cookie": f"__Host-rlrun-session={cookie}".encode("latin-1")}
    assert (await api.client.get("/whoami", headers=headers)).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"{}", b'{"token": ""}', b'{"token": 1}', b'{"token": "a", "code": "b"}', b'{"other": "a"}',
        b'{"token": "with\\u0000zero"}', b'{"token": "two words"}', b'{"token": "' + b"x" * 20_000 + b'"}',
        b'{"code": "."}', b'{"token": "a", "token": "b"}', b'{"token": "' + b"x" * 40_000 + b'"}',
    ],
    ids=lambda body: body[:24].decode(),
)  # fmt: skip
async def test_bad_bodies_are_refused_and_not_repeated(api: RestApi, page: dict[str, str], body: bytes) -> None:
    answer = await api.client.post("/session", content=body, headers=page)
    assert answer.status_code in (400, 413, 422)
    assert "two words" not in answer.text
    assert "xxxx" not in answer.text


async def test_a_credential_that_no_cookie_holds_is_refused(api: RestApi, page: dict[str, str]) -> None:
    token = "".join(random.Random(0).choices(string.ascii_letters + string.digits, k=9000))
    api.api.users[token] = "ann"
    answer = await log_in(api, page, token)
    assert answer.status_code == 422
    assert "API key" in answer.json()["detail"]
    assert "set-cookie" not in answer.headers


async def test_logins_are_limited_and_known_users_get_in(api: RestApi, page: dict[str, str], times: Times) -> None:
    api.user("ann")
    assert (await log_in(api, page, "token-of-ann")).status_code == 200
    found = [(await log_in(api, page, f"guess-{i}")).status_code for i in range(int(ATTEMPTS.burst) + 5)]
    assert set(found) == {401, 429}
    assert found.index(429) == ATTEMPTS.burst - 1
    refused = await log_in(api, page, "rlk_" + "a" * 12 + "_" + "b" * 43)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert (await api.client.post("/session", json={"code": "abc"}, headers=page)).status_code == 429
    # Behind an Ingress all users have the address of the one who guesses.
    key = (await api.key("team"))["Authorization"].removeprefix("Bearer ")
    assert (await log_in(api, page, key)).status_code == 200
    assert (await log_in(api, page, "token-of-ann")).status_code == 200
    times.now += 60
    assert (await log_in(api, page, "another-guess")).status_code == 401


async def test_a_code_logs_in_once(api: RestApi, page: dict[str, str]) -> None:
    ann = api.user("ann")
    made = (await api.client.post("/session:code", headers=ann)).json()
    assert made["expires"] == "2001-09-09T01:47:40Z"
    assert "token-of-ann" not in json.dumps(made)
    first = await api.client.post("/session", json={"code": made["code"]}, headers=page)
    headers = {**page, "Cookie": cookie_of(first)}
    assert (await api.client.get("/whoami", headers=headers)).json()["name"] == "ann"
    second = await api.client.post("/session", json={"code": made["code"]}, headers=page)
    assert (second.status_code, second.json()["reason"]) == (401, "LoginCodeInvalid")


async def test_a_code_ends_after_a_minute_and_is_no_session(api: RestApi, page: dict[str, str], times: Times) -> None:
    ann = api.user("ann")
    code = (await api.client.post("/session:code", headers=ann)).json()["code"]
    as_cookie = {**page, "Cookie": f"__Host-rlrun-session={code}"}
    assert (await api.client.get("/whoami", headers=as_cookie)).status_code == 401
    session = (await session_of(api, page, "ann"))["Cookie"].partition("=")[2]
    assert (await api.client.post("/session", json={"code": session}, headers=page)).status_code == 401
    times.now += CODE_SECONDS
    assert (await api.client.post("/session", json={"code": code}, headers=page)).status_code == 401


async def test_a_cookie_makes_no_codes(api: RestApi, page: dict[str, str]) -> None:
    ann = await session_of(api, page, "ann")
    assert (await api.client.post("/session:code", headers=ann)).status_code == 401


async def test_no_credential_is_logged(
    api: RestApi, page: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    ann = await session_of(api, page, "ann")
    code = (await api.client.post("/session:code", headers=api.user("ann"))).json()["code"]
    await api.client.post("/session", json={"code": code}, headers=page)
    await log_in(api, page, "wrong-token")

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(type(api.services.objects), "require", fail)
    assert (await api.client.get("/models", headers=ann)).status_code == 500
    own = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("rlrun"))
    for secret in ("token-of-ann", "wrong-token", code, ann["Cookie"].partition("=")[2]):
        assert secret not in own


@asynccontextmanager
async def with_issuer(stub: OidcIssuerStub, **fields: object) -> AsyncIterator[RestApi]:
    """An API with a login at the issuer, whose tokens have the real time."""
    settings = OidcSettings.model_validate(
        {"issuer": stub.url, "clientId": CLIENT, "redirectUrl": "https://server/", **fields}
    )
    issuer = OidcIssuer(settings, lambda: SECRET, time.monotonic)
    yield rest_api(now=time.time, oidc=OidcLogin(settings, issuer, Sealer(lambda: [KEY]), time.time))
    await issuer.close()


@pytest.fixture
async def at_issuer(stub: OidcIssuerStub) -> AsyncIterator[RestApi]:
    """An API that impersonates the users of the issuer."""
    async with with_issuer(stub, impersonate=True, usernamePrefix="oidc:", groupsPrefix="oidc:") as api:
        yield api


@pytest.fixture
async def token_login(stub: OidcIssuerStub) -> AsyncIterator[RestApi]:
    """An API whose users have the ID token as their credential."""
    async with with_issuer(stub) as api:
        yield api


@pytest.fixture
def stub() -> Iterator[OidcIssuerStub]:
    with oidc_issuer_stub() as started:
        started.claims = {"groups": ["ml", "system:masters"]}
        yield started


async def begin(api: RestApi, stub: OidcIssuerStub, page: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the issuer's answer, and the headers of the browser that comes back with it."""
    begun = await api.client.post("/session:oidc", headers=page)
    back = stub.authorize(urlsplit(begun.json()["url"]).query)
    return dict(parse_qsl(urlsplit(back).query)), {**page, "Cookie": cookie_of(begun)}


async def test_a_login_at_the_issuer_is_a_session_with_the_rights_of_the_named_user(
    at_issuer: RestApi, stub: OidcIssuerStub, page: dict[str, str]
) -> None:
    answer, headers = await begin(at_issuer, stub, page)
    ended = await at_issuer.client.post("/session", json={"oidc": answer}, headers=headers)
    groups = ["system:authenticated", "oidc:ml", "oidc:system:masters"]
    assert ended.json()["identity"] == {"name": "oidc:ann", "uid": "", "groups": groups}
    cookies = [cookie.partition(";")[0] for cookie in ended.headers.get_list("set-cookie")]
    assert cookies[1] == '__Host-rlrun-login=""', "the login has ended"
    ann = {**page, "Cookie": cookies[0]}
    assert (await at_issuer.client.get("/whoami", headers=ann)).json()["name"] == "oidc:ann"
    at_issuer.add(run_object("first"), run_object("second", "others"))
    at_issuer.api.permissions |= {("oidc:ann", f"{verb} rlruns in team") for verb in ("list", "get", "delete")}
    assert (await at_issuer.client.get("/namespaces/team/runs/first", headers=ann)).status_code == 200
    assert (await at_issuer.client.get("/namespaces/others/runs/second", headers=ann)).status_code == 404
    await at_issuer.client.delete("/namespaces/team/runs/first", headers=ann)
    (sent,) = [request for request in at_issuer.cluster.requests if request.verb == "delete"]
    named = [("Impersonate-User", "oidc:ann")]
    assert list(sent.impersonation) == [*named, *(("Impersonate-Group", group) for group in groups[1:])]
    assert "Authorization" not in sent.extra_headers


@pytest.mark.parametrize(
    ("status", "why", "expected"),
    [
        (401, "Unauthorized", 503),
        (403, 'User "system:serviceaccount:rlrun:rlrun-server" cannot impersonate resource "users"', 503),
        (403, 'User "oidc:ann" cannot delete resource "rlruns"', 403),
    ],
)
async def test_a_server_that_may_not_impersonate_does_not_say_that_the_user_has_no_right(
    at_issuer: RestApi, stub: OidcIssuerStub, page: dict[str, str], status: int, why: str, expected: int
) -> None:
    answer, headers = await begin(at_issuer, stub, page)
    ended = await at_issuer.client.post("/session", json={"oidc": answer}, headers=headers)
    ann = {**page, "Cookie": ended.headers.get_list("set-cookie")[0].partition(";")[0]}
    at_issuer.add(run_object("first"))
    at_issuer.api.permissions |= {("oidc:ann", f"{verb} rlruns in team") for verb in ("list", "delete")}
    at_issuer.cluster.answers["delete RLRun team/first"] = [ApiError(status, "Refused", why)]
    refused = await at_issuer.client.delete("/namespaces/team/runs/first", headers=ann)
    assert refused.status_code == expected, refused.text
    assert why in refused.json()["detail"]


async def test_other_hosts_and_scripts_do_not_get_the_login(
    at_issuer: RestApi, page: dict[str, str], stub: OidcIssuerStub
) -> None:
    begun = await at_issuer.client.post("/session:oidc", headers=page)
    attributes = begun.headers["set-cookie"].split("; ")
    assert attributes[0].startswith("__Host-rlrun-login=")
    assert {part.lower() for part in attributes[1:]} == {
        "httponly", "path=/", "samesite=strict", "secure", f"max-age={LOGIN_SECONDS}",
    }  # fmt: skip
    refused = await at_issuer.client.post("/session:oidc", headers={**page, "Origin": "https://evil.org"})
    assert (refused.status_code, refused.json()["reason"]) == (403, "CrossSiteRequest")
    answer, _ = await begin(at_issuer, stub, page)
    without = await at_issuer.client.post("/session", json={"oidc": answer}, headers=page)
    assert (without.status_code, without.json()["reason"]) == (403, "OidcLoginRefused")
    assert "set-cookie" not in without.headers


async def test_guesses_do_not_keep_others_from_the_issuer(
    at_issuer: RestApi, stub: OidcIssuerStub, page: dict[str, str]
) -> None:
    """All users may come through one gateway, so that they have one address."""
    _, headers = await begin(at_issuer, stub, page)
    guess = {"oidc": {"code": "guess", "state": "guess"}}
    for _ in range(int(ISSUER_LOGINS.burst) + 1):
        assert (await at_issuer.client.post("/session", json=guess, headers=headers)).status_code == 403
    for _ in range(int(ATTEMPTS.burst) + 1):
        answer, headers = await begin(at_issuer, stub, page)
        ended = await at_issuer.client.post("/session", json={"oidc": answer}, headers=headers)
        assert ended.status_code == 200


async def test_requests_to_the_issuer_are_limited(
    at_issuer: RestApi, stub: OidcIssuerStub, page: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, headers = await begin(at_issuer, stub, page)
    guess = {"oidc": {**answer, "code": "guess"}}
    allowed = iter([True, True, False])
    monkeypatch.setattr(RateLimiter, "allow", lambda *_: next(allowed))
    found = [(await at_issuer.client.post("/session", json=guess, headers=headers)).status_code for _ in range(3)]
    assert found == [403, 403, 429]
    assert stub.requests["/token"] == 2


async def test_id_tokens_are_no_guesses(token_login: RestApi, stub: OidcIssuerStub, page: dict[str, str]) -> None:
    for number in range(int(ATTEMPTS.burst) + 1):
        stub.claims = {"jti": str(number)}
        answer, headers = await begin(token_login, stub, page)
        ended = await token_login.client.post("/session", json={"oidc": answer}, headers=headers)
        # The API server of this test does not know the token, and was asked.
        assert (ended.status_code, ended.json()["reason"]) == (401, "TokenInvalid")


async def test_a_server_without_an_issuer_says_so(api: RestApi, page: dict[str, str]) -> None:
    for path, body in (("/session:oidc", None), ("/session", {"oidc": {"code": "a", "state": "b"}})):
        answer = await api.client.post(path, json=body, headers=page)
        assert (answer.status_code, answer.json()["reason"]) == (404, "ObjectNotFound")
        assert "server.oidc" in answer.json()["detail"]
