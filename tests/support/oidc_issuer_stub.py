"""Stub of an OpenID Connect issuer on loopback. It logs everybody in, and has the faults that a test plants."""

import base64
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from typing_extensions import override

CLIENT, SECRET = "rlrun", "secret of the client"
TOKEN_SECONDS = 300
METHODS = "token_endpoint_auth_methods_supported"
"""Field of a configuration. With it the stub takes secrets in the body of requests alone."""


class SigningKey:
    """Key pair of an issuer."""

    def __init__(self, key_id: str) -> None:
        self.id = key_id
        self.private = ec.generate_private_key(ec.SECP256R1())

    @property
    def public(self) -> dict[str, Any]:
        """The public key as it is published."""
        key = json.loads(ECAlgorithm.to_jwk(self.private.public_key()))
        return {**key, "kid": self.id, "use": "sig", "alg": "ES256"}

    def sign(self, claims: dict[str, Any]) -> str:
        """Return a token."""
        return jwt.encode(claims, self.private, "ES256", headers={"kid": self.id})


@dataclass
class OidcIssuerStub:
    """State of the stub, which tests read and change while it runs."""

    url: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims of ID tokens beside those that an issuer always makes, or in place of them."""
    configuration: dict[str, Any] = field(default_factory=dict)
    """Fields of the configuration in place of the stub's own."""
    key: SigningKey = field(default_factory=lambda: SigningKey("first"))
    published: list[dict[str, Any]] = field(default_factory=list)
    """Keys. Empty: the one that signs."""
    token: str | None = None
    """Answer in place of an ID token that is signed with `key`."""
    secret: str = SECRET
    """Secret that the client must have. Empty: it is a public client."""
    is_silent: bool = False
    """Requests get no answer."""
    error: str = ""
    """Error with which browsers are sent back."""
    requests: Counter[str] = field(default_factory=Counter)
    """Number of requests by path."""
    logins: dict[str, dict[str, str]] = field(default_factory=dict)
    """Parameters of logins by code."""
    ended: threading.Event = field(default_factory=threading.Event)

    def authorize(self, query: str) -> str:
        """Return the address to which a browser is sent back that has come with this query."""
        asked = dict(parse_qsl(query))
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.logins)}"
        self.logins[code] = asked
        answer = {"error": self.error} if self.error else {"code": code}
        return f"{asked['redirect_uri']}?{urlencode({**answer, 'state': asked['state']})}"

    def claims_of(self, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token."""
        now = int(time.time())
        own = {"iss": self.url, "aud": CLIENT, "sub": "ann", "iat": now, "exp": now + TOKEN_SECONDS, "nonce": nonce}
        return {name: value for name, value in (own | self.claims).items() if value is not None}

    def redeem(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, str]]:
        """Return status and body of the answer to a code, which counts once."""
        asked = self.logins.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        pair = base64.b64encode(f"{CLIENT}:{self.secret.replace(' ', '+')}".encode()).decode()
        if not self.secret:
            is_client = form.get("client_id") == CLIENT
        elif METHODS in self.configuration:
            is_client = (form.get("client_id"), form.get("client_secret"), authorization) == (CLIENT, self.secret, "")
        else:
            is_client = authorization == f"Basic {pair}" and "client_secret" not in form
        if not is_client:
            return 401, {"error": "invalid_client"}
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or asked["code_challenge"] != base64.urlsafe_b64encode(digest).decode().rstrip("=")
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"id_token": self.token or self.key.sign(self.claims_of(asked["nonce"])), "access_token": "unused"}


@contextmanager
def oidc_issuer_stub() -> Iterator[OidcIssuerStub]:
    """Serve the stub on a free port."""
    stub = OidcIssuerStub()

    class Handler(BaseHTTPRequestHandler):
        @override
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            path, query = self._path()
            if path == "/authorize":
                self.send_response(302)
                self.send_header("Location", stub.authorize(query))
                self.end_headers()
            elif path == "/keys":
                self._send(200, {"keys": stub.published or [stub.key.public]})
            else:
                own = {"issuer": stub.url, "authorization_endpoint": f"{stub.url}/authorize"}
                own |= {"token_endpoint": f"{stub.url}/token", "jwks_uri": f"{stub.url}/keys"}
                self._send(200, own | stub.configuration)

        def do_POST(self) -> None:
            self._path()
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._send(*stub.redeem(dict(parse_qsl(body)), self.headers.get("Authorization", "")))

        def _path(self) -> tuple[str, str]:
            parts = urlsplit(self.path)
            stub.requests[parts.path] += 1
            if stub.is_silent:
                stub.ended.wait(60)
            return parts.path, parts.query

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
