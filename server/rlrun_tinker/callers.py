"""Credentials of clients. This program forwards them to rlrun-server, which verifies them."""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.protocol.access import bearer
from rlrun_server.http.request import client_of
from rlrun_server.runtime.rate_limit import Rate, RateLimiter
from starlette.requests import Request

from rlrun_tinker.errors import TinkerError

KEY_HEADER = "X-API-Key"
KEY_PREFIX = "tml-"
TOKEN_PREFIX = "eyJ"
_CREDENTIAL = re.compile(r"[!-~]{1,16384}")
"""Pattern of a credential: visible ASCII characters, so that a credential cannot add a header."""
UNKNOWN = Rate(per_second=5.0, burst=50.0)
"""Rate limit per address for requests with credentials that rlrun-server has not accepted. rlrun-server limits new
Kubernetes tokens to 20 per second for all clients of this program combined, and one address must not use up this limit.
"""
REMEMBERED = 10_000


@dataclass(frozen=True)
class CredentialHolder:
    """Client that sent a request, identified by its credential."""

    credential: str
    digest: str
    """SHA-256 of the credential in hexadecimal. It identifies the client in limits and caches."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers for rlrun-server."""
        return bearer(self.credential)


class Callers:
    """Identifies the caller of each request, and limits guesses of credentials."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._limiter = RateLimiter(UNKNOWN)
        self._accepted: OrderedDict[str, None] = OrderedDict()
        """Digests of accepted credentials. They do not expire, because open runs continue while rlrun-server does not
        respond.
        """

    def identify(self, request: Request) -> CredentialHolder:
        """Return the caller, whose credential may still be invalid. Raises TinkerError if there is no credential, or if
        the address sends too many unknown ones.
        """
        given = request.headers.get(KEY_HEADER, "")
        credential = given.removeprefix(KEY_PREFIX)
        if not (given.startswith(KEY_PREFIX) or given.startswith(TOKEN_PREFIX)) or not _CREDENTIAL.fullmatch(
            credential
        ):
            message = (
                f"Set TINKER_API_KEY to {KEY_PREFIX} followed by an rlrun API key (rlrun key create), or to a "
                "Kubernetes token."
            )
            raise TinkerError(401, message)
        caller = CredentialHolder(credential, hashlib.sha256(credential.encode()).hexdigest())
        if not self.is_accepted(caller) and not self._limiter.allow(client_of(request), self._clock()):
            message = "Too many requests with new credentials come from this address. Retry the request later."
            raise TinkerError(429, message)
        return caller

    def accept(self, caller: CredentialHolder) -> None:
        """Record that rlrun-server accepted the credential."""
        self._accepted[caller.digest] = None
        self._accepted.move_to_end(caller.digest)
        while len(self._accepted) > REMEMBERED:
            self._accepted.popitem(last=False)

    def refuse(self, caller: CredentialHolder) -> None:
        """Record that rlrun-server rejected the credential."""
        self._accepted.pop(caller.digest, None)

    def give_back(self, request: Request) -> None:
        """Stop counting a request against its address, because its credential was accepted. Many new clients may share
        the address of one Ingress.
        """
        self._limiter.give_back(client_of(request))

    def is_accepted(self, caller: CredentialHolder) -> bool:
        """Return whether rlrun-server accepted the credential in its latest response."""
        return caller.digest in self._accepted
