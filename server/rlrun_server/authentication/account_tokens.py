"""Provides tokens for the ServiceAccount that gives API keys their permissions.

A change that a caller requests with an API key is sent to the API server with such a token.
"""

import base64
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rlrun.constants import Reason
from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.api_keys import ACCOUNT
from rlrun.service.errors import ProblemError

from rlrun_server.authentication.users import User

log = logging.getLogger(__name__)

TOKEN_SECONDS = 600
"""Lifetime of a token in seconds, the minimum that the API server supports."""
KEPT_SECONDS = TOKEN_SECONDS / 2
MAX_TOKENS = 2000
"""Maximum number of cached tokens, one per API key. Above it, tokens are not cached."""

Send = Callable[[KubeRequest], Awaitable[Obj]]


@dataclass(frozen=True)
class _CachedToken:
    until: float
    account_uid: str
    token: str = field(repr=False)


class AccountTokens:
    """Requests tokens for the ServiceAccount `rlrun-user` from the API server, and caches each in memory for half of
    its lifetime.

    A token is used only for requests with a valid API key, so revoking the key also ends the use of its token.
    """

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        """`send` sends a request with rlrun-server's permissions, and raises ApiError."""
        self._send = send
        self._clock = clock
        self._kept: dict[str, _CachedToken] = {}
        """Tokens by the id of the API key."""

    async def token(self, user: User) -> str:
        """Return a token for the ServiceAccount of the user's API key. Raises ProblemError."""
        now = self._clock()
        kept = self._kept.get(user.api_key)
        if kept is not None and now < kept.until and kept.account_uid == user.uid:
            return kept.token
        token = await self._ask(user)
        self._kept = {key: each for key, each in self._kept.items() if now < each.until}
        if len(self._kept) < MAX_TOKENS:
            self._kept[user.api_key] = _CachedToken(now + KEPT_SECONDS, user.uid, token)
        return token

    def forget(self, key_id: str) -> None:
        """Drop a key's cached token, because the key was revoked or the API server rejects the token."""
        self._kept.pop(key_id, None)

    async def _ask(self, user: User) -> str:
        try:
            answer = await self._send(requests.create_token(user.namespace, ACCOUNT, TOKEN_SECONDS))
        except ApiError as error:
            log.warning("cannot create a token for API key %s in namespace %s: %s", user.api_key, user.namespace, error)
            raise _refusal_problem(error, user.namespace) from error
        token = str((answer.get("status") or {}).get("token") or "")
        if account_uid_of(token) != user.uid:
            # The account was deleted and recreated since the key was checked.
            raise _account_deleted()
        return token


def account_uid_of(token: str) -> str | None:
    """Return the UID of the ServiceAccount in a token from the API server, or None if the token is malformed."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return str(claims["kubernetes.io"]["serviceaccount"]["uid"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _refusal_problem(error: ApiError, namespace: str) -> ProblemError:
    if error.status == 404:
        return _account_deleted()
    if error.status == 403:
        message = (
            f"rlrun-server may not create tokens for ServiceAccount {ACCOUNT} in namespace {namespace}. It needs them "
            "to make changes on behalf of an API key. Ask the platform team to upgrade the chart, or use a Kubernetes "
            "token."
        )
        return ProblemError.of(403, Reason.API_KEY_NOT_ALLOWED, message)
    message = "The API server did not create a token for the API key. Retry the request."
    return ProblemError.of(503, Reason.STORAGE_SERVER_UNAVAILABLE, message)


def _account_deleted() -> ProblemError:
    message = "The API key is invalid because its ServiceAccount was deleted. Create a new key."
    return ProblemError.of(401, Reason.TOKEN_INVALID, message)
