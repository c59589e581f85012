"""Logins at an OIDC issuer, with the faults of issuers, browsers and attackers."""

import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm
from rlrun.constants import Reason
from rlrun.service.errors import ProblemError
from rlrun_server.authentication.oidc_issuer import MAX_BYTES, ROTATION_SECONDS, OidcIssuer
from rlrun_server.authentication.oidc_login import LOGIN_SECONDS, OidcLogin
from rlrun_server.authentication.sealed import Sealer
from rlrun_server.authentication.users import User, Users
from rlrun_server.runtime.oidc_settings import OidcSettings

from tests.support.json_web_tokens import base64url
from tests.support.oidc_issuer_stub import (
    CLIENT,
    METHODS,
    SECRET,
    TOKEN_SECONDS,
    OidcIssuerStub,
    SigningKey,
    oidc_issuer_stub,
)
from tests.support.signing_server import KEY, ReviewingApi

PAGE = "https://rl.example.com/"


@pytest.fixture
def stub() -> Iterator[OidcIssuerStub]:
    with oidc_issuer_stub() as started:
        yield started


@dataclass
class Browser:
    """A browser at the page of a server."""

    stub: OidcIssuerStub
    login: OidcLogin
    users: Users
    seconds: float = 0.0
    """Time that has passed."""

    async def begin(self) -> tuple[dict[str, str], str]:
        """Return the answer of the issuer, and what the browser keeps."""
        url, kept = await self.login.begin()
        back = urlsplit(self.stub.authorize(urlsplit(url).query))
        assert f"{back.scheme}://{back.netloc}{back.path}" == PAGE
        return dict(parse_qsl(back.query)), kept

    async def log_in(self) -> User | None:
        """Return the user, after a whole login."""
        answer, kept = await self.begin()
        token, _ = await self.login.end(self.login.open_login(kept, answer["state"]), answer["code"])
        return await self.users.identify(token)

    async def refusal(self) -> str:
        """Return why the login is refused."""
        with pytest.raises(ProblemError) as refused:
            await self.log_in()
        assert (refused.value.status, refused.value.problem.reason) == (403, Reason.OIDC_LOGIN_REFUSED)
        return refused.value.problem.message


@asynccontextmanager
async def browser(
    stub: OidcIssuerStub, secret: str = SECRET, timeout: float = 5.0, **fields: Any
) -> AsyncIterator[Browser]:
    """Yield a browser at a server with these settings."""
    given = {"issuer": stub.url, "client_id": CLIENT, "redirect_url": PAGE, "impersonate": True, **fields}
    settings, sealer = OidcSettings.model_validate(given), Sealer(lambda: [KEY])
    issuer = OidcIssuer(settings, lambda: secret, lambda: found.seconds, timeout)
    login = OidcLogin(settings, issuer, sealer, lambda: time.time() + found.seconds)
    found = Browser(stub, login, Users(ReviewingApi().create, lambda: 0.0, issuer_sealer=sealer))
    try:
        yield found
    finally:
        await issuer.close()


async def test_a_user_has_the_name_and_groups_of_the_claims_with_their_prefixes(stub: OidcIssuerStub) -> None:
    stub.claims = {"email": "ann@example.com", "roles": ["ml", "ops"]}
    names = {"username_claim": "email", "username_prefix": "oidc:", "groups_claim": "roles", "groups_prefix": "team-"}
    async with browser(stub, **names) as one:
        user = await one.log_in()
    assert user == User("oidc:ann@example.com", groups=("system:authenticated", "team-ml", "team-ops"))


async def test_the_browser_is_sent_to_the_issuer_with_a_challenge_and_without_the_verifier(
    stub: OidcIssuerStub,
) -> None:
    stub.configuration = {"authorization_endpoint": f"{stub.url}/authorize?realm=a"}
    async with browser(stub, scopes=("openid", "groups")) as one:
        url, _ = await one.login.begin()
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert query.pop("realm") == "a"
    assert (query["scope"], query["redirect_uri"], query["code_challenge_method"]) == ("openid groups", PAGE, "S256")
    assert set(query) == {
        "response_type", "client_id", "redirect_uri", "scope", "state", "nonce", "code_challenge",
        "code_challenge_method",
    }  # fmt: skip


@pytest.mark.parametrize("claims", [{}, {"aud": "another client"}], ids=["accepted", "refused"])
@pytest.mark.parametrize("impersonate", [True, False])
async def test_no_secret_of_a_login_is_logged(
    stub: OidcIssuerStub, claims: dict[str, Any], impersonate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stub.claims = claims
    async with browser(stub, impersonate=impersonate) as one:
        answer, kept = await one.begin()
        begun = one.login.open_login(kept, answer["state"])
        stub.token = stub.key.sign(stub.claims_of(begun.nonce))
        secrets = {SECRET, kept, answer["code"], begun.verifier, begun.nonce, *stub.token.split(".")[1:]}
        with suppress(ProblemError):
            secrets.add((await one.login.end(begun, answer["code"]))[0])
    assert [secret for secret in secrets if secret in caplog.text] == []


@pytest.mark.parametrize("fields", [{}, {"session_seconds": 7200}], ids=str)
async def test_a_session_ends_with_the_token_or_after_the_set_time(
    stub: OidcIssuerStub, fields: dict[str, Any]
) -> None:
    async with browser(stub, **fields) as one:
        answer, kept = await one.begin()
        token, end = await one.login.end(one.login.open_login(kept, answer["state"]), answer["code"])
        assert end is not None
        assert end - time.time() == pytest.approx(fields.get("session_seconds", TOKEN_SECONDS), abs=30)
        later = Users(
            ReviewingApi().create,
            lambda: 0.0,
            now=lambda: datetime.fromtimestamp(end, UTC),
            issuer_sealer=Sealer(lambda: [KEY]),
        )
        assert await one.users.identify(token) is not None
        assert await later.identify(token) is None


async def test_without_impersonation_the_id_token_is_the_credential(stub: OidcIssuerStub) -> None:
    async with browser(stub, impersonate=False) as one:
        answer, kept = await one.begin()
        token, end = await one.login.end(one.login.open_login(kept, answer["state"]), answer["code"])
    assert jwt.decode(token, options={"verify_signature": False})["sub"] == "ann"
    assert end is None


async def test_a_user_of_an_issuer_is_nobody_where_none_is_set(stub: OidcIssuerStub) -> None:
    async with browser(stub) as one:
        answer, kept = await one.begin()
        token, _ = await one.login.end(one.login.open_login(kept, answer["state"]), answer["code"])
    assert await Users(ReviewingApi().create, lambda: 0.0).identify(token) is None
    others = Users(ReviewingApi().create, lambda: 0.0, issuer_sealer=Sealer(lambda: [b"another key of many bytes"]))
    assert await others.identify(token) is None


async def test_a_public_client_has_no_secret(stub: OidcIssuerStub) -> None:
    stub.secret = ""
    async with browser(stub, secret="") as one:
        assert await one.log_in() is not None


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"nonce": "of another login"}, "different login"),
        ({"nonce": None}, "different login"),
        ({"nonce": "\ud800"}, "different login"),
        ({"aud": "other"}, "Audience"),
        ({"aud": [CLIENT, "other"]}, "azp"),
        ({"azp": "other"}, "azp"),
        ({"iss": "https://evil.org"}, "issuer"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": 2**33}, "iat"),
        ({"sub": None}, "sub"),
        ({"sub": " ann"}, "not a name of 1 to"),
        ({"sub": "ann\r\nImpersonate-Group: system:masters"}, "not a name of 1 to"),
        ({"groups": ["ok", "system:masters"]}, "groupsPrefix"),
        ({"groups": "system:masters"}, "groupsPrefix"),
        ({"groups": [" system:masters"]}, "not a name of 1 to"),
        ({"groups": [7]}, "not a name of 1 to"),
        ({"groups": {"system:masters": 1}}, "groupsClaim"),
        ({"sub": "system:kube-controller-manager"}, "usernamePrefix"),
    ],
    ids=str,
)
async def test_a_token_that_proves_too_little_is_refused(
    stub: OidcIssuerStub, claims: dict[str, Any], expected: str
) -> None:
    stub.claims = claims
    async with browser(stub) as one:
        assert expected in await one.refusal()


async def test_a_prefix_takes_the_rights_from_reserved_names(stub: OidcIssuerStub) -> None:
    stub.claims = {"groups": ["system:masters"]}
    async with browser(stub, groups_prefix="oidc:") as one:
        user = await one.log_in()
    assert user is not None
    assert user.groups == ("system:authenticated", "oidc:system:masters")


async def test_prefix_and_claim_together_make_no_reserved_name(stub: OidcIssuerStub) -> None:
    stub.claims = {"groups": ["tem:masters"]}
    async with browser(stub, groups_prefix="sys") as one:
        assert "groupsPrefix" in await one.refusal()


async def test_an_address_that_is_not_verified_is_no_name(stub: OidcIssuerStub) -> None:
    stub.claims = {"email": "ann@example.com", "email_verified": False}
    async with browser(stub, username_claim="email") as one:
        assert "has not verified" in await one.refusal()


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_a_token_without_a_key_pair_is_refused(stub: OidcIssuerStub, algorithm: str) -> None:
    async with browser(stub) as one:
        answer, kept = await one.begin()
        claims = stub.claims_of(stub.logins[answer["code"]]["nonce"])
        if algorithm == "none":
            stub.token = jwt.encode(claims, None, "none", headers={"kid": stub.key.id})
        else:
            public = stub.key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            stub.token = hs256(claims, public, stub.key.id)
        with pytest.raises(ProblemError, match="alg"):
            await one.login.end(one.login.open_login(kept, answer["state"]), answer["code"])


def hs256(claims: dict[str, Any], secret: bytes, key_id: str) -> str:
    """Return a token whose secret is a public key, which the library itself refuses to make."""
    signed = ".".join(map(base64url, ({"alg": "HS256", "kid": key_id}, claims)))
    digest = hmac.digest(secret, signed.encode(), hashlib.sha256)
    return f"{signed}.{base64url(digest)}"


async def test_a_token_of_another_key_with_a_known_id_is_refused(stub: OidcIssuerStub) -> None:
    stub.published = [SigningKey(stub.key.id).public]
    async with browser(stub) as one:
        assert "Signature verification failed" in await one.refusal()


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "PS256", "PS512"])
async def test_a_key_of_rsa_need_not_name_its_algorithm(stub: OidcIssuerStub, algorithm: str) -> None:
    private = rsa.generate_private_key(65537, 2048)
    stub.published = [{**json.loads(RSAAlgorithm.to_jwk(private.public_key())), "kid": "rsa", "use": "sig"}]
    async with browser(stub) as one:
        answer, kept = await one.begin()
        claims = stub.claims_of(stub.logins[answer["code"]]["nonce"])
        stub.token = jwt.encode(claims, private, algorithm, headers={"kid": "rsa"})
        token, _ = await one.login.end(one.login.open_login(kept, answer["state"]), answer["code"])
        assert (await one.users.identify(token)) is not None


async def test_a_new_key_is_found_and_unknown_ones_cost_a_request_per_interval(stub: OidcIssuerStub) -> None:
    async with browser(stub) as one:
        await one.log_in()
        stub.key = SigningKey("second")
        one.seconds = ROTATION_SECONDS
        await one.log_in()
        assert stub.requests["/keys"] == 2
        stub.published = [stub.key.public]
        stub.key = SigningKey("third")
        for _ in range(3):
            assert "'third'" in await one.refusal()
        assert stub.requests["/keys"] == 2
        one.seconds += ROTATION_SECONDS
        for _ in range(3):
            await one.refusal()
        assert stub.requests["/keys"] == 3
        assert stub.requests["/.well-known/openid-configuration"] == 1


async def test_only_its_browser_ends_a_login_and_in_time(stub: OidcIssuerStub) -> None:
    async with browser(stub) as one:
        mine, kept = await one.begin()
        others, kept_by_other = await one.begin()
        for text, state in (
            (kept, others["state"]),
            (kept_by_other, mine["state"]),
            (kept[:-4], mine["state"]),
            ("", ""),
        ):
            with pytest.raises(ProblemError, match="was not started in this browser"):
                await one.login.end(one.login.open_login(text, state), mine["code"])
        one.seconds = LOGIN_SECONDS
        with pytest.raises(ProblemError, match="10 minutes"):
            await one.login.end(one.login.open_login(kept, mine["state"]), mine["code"])
        assert stub.requests["/token"] == 0, "no code is redeemed for a login that is refused"


async def test_the_code_of_another_login_is_worth_nothing(stub: OidcIssuerStub) -> None:
    async with browser(stub) as one:
        mine, kept = await one.begin()
        others, _ = await one.begin()
        with pytest.raises(ProblemError, match="invalid_grant"):
            await one.login.end(one.login.open_login(kept, mine["state"]), others["code"])


async def test_an_issuer_gets_the_secret_where_it_wants_it(stub: OidcIssuerStub) -> None:
    stub.configuration = {METHODS: ["client_secret_post"]}
    async with browser(stub) as one:
        assert await one.log_in() is not None


async def test_a_wrong_secret_is_named(stub: OidcIssuerStub) -> None:
    async with browser(stub, secret="wrong") as one:
        message = await one.refusal()
    assert "invalid_client" in message
    assert "wrong" not in message


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({"padding": "x" * MAX_BYTES}, "larger than"),
        ({"issuer": "https://issuer.example.com"}, "set server.oidc.issuer to exactly this"),
        ({"token_endpoint": "http://issuer.example.com/token"}, "https://"),
        ({"jwks_uri": None}, "not a valid IssuerConfiguration"),
    ],
    ids=["large", "issuer", "http", "incomplete"],
)
async def test_a_configuration_that_is_none_is_refused(
    stub: OidcIssuerStub, configuration: dict[str, Any], expected: str
) -> None:
    stub.configuration = configuration
    async with browser(stub) as one:
        with pytest.raises(ProblemError, match=expected) as refused:
            await one.login.begin()
    assert (refused.value.status, refused.value.problem.reason) == (503, Reason.OIDC_ISSUER_UNAVAILABLE)


async def test_an_issuer_that_does_not_answer_is_not_waited_for(stub: OidcIssuerStub) -> None:
    stub.is_silent = True
    async with browser(stub, timeout=0.2) as one:
        with pytest.raises(ProblemError, match=r"networkPolicy\.egress") as refused:
            await one.login.begin()
    assert (refused.value.status, refused.value.problem.reason) == (503, Reason.OIDC_ISSUER_UNAVAILABLE)
