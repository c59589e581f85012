"""Identifies users by the credential in their requests: a Kubernetes token, an API key or an issuer login."""

import logging
import math
from collections.abc import Callable

from rlrun.constants import Reason
from rlrun.kube.errors import ApiError
from rlrun.service.errors import ProblemError

from rlrun_server.authentication.api_key_store import StoreMissing
from rlrun_server.authentication.users import User, Users
from rlrun_server.runtime.metrics import USER_REVIEWS
from rlrun_server.runtime.rate_limit import Rate, RateLimiter

log = logging.getLogger(__name__)

REVIEW_BURST_SECONDS = 10.0
ADDRESSES = 5
"""Number of addresses that can send new credentials at their full rate before the total limit is reached."""
EVERYONE = ""
LOG_SECONDS = 3600.0


class Identification:
    """Identifies the sender of a request. New Kubernetes tokens are rate-limited per address and in total. Rejections
    are ProblemErrors.
    """

    def __init__(self, users: Users, reviews_per_second: float, clock: Callable[[], float]) -> None:
        self._users = users
        self._clock = clock
        self._logged: dict[str, float] = {}
        """Time of the latest log line about each API key, by the key's id."""
        self._new = RateLimiter(Rate(reviews_per_second, REVIEW_BURST_SECONDS * reviews_per_second))
        of_all = ADDRESSES * reviews_per_second
        self._new_of_all = RateLimiter(Rate(of_all, REVIEW_BURST_SECONDS * of_all))

    async def identify(self, token: str, client: str) -> User:
        """Return the user to whom a token or API key belongs. `client` is the address of the connection. Raises
        ProblemError.
        """
        self._limit(token, client)
        try:
            user = await self._users.identify(token)
        except (ApiError, StoreMissing) as error:
            raise not_reviewed(error) from error
        USER_REVIEWS.labels("refused" if user is None else "accepted").inc()
        if user is None:
            raise _unauthorized_problem()
        self._log_use(user)
        return user

    async def is_key_manager(self, token: str, client: str, namespace: str) -> bool:
        """Return whether the token allows managing the API keys of the namespace. Raises ProblemError."""
        self._limit(token, client)
        try:
            return await self._users.is_key_manager(token, namespace)
        except ApiError as error:
            raise not_reviewed(error) from error

    def _limit(self, token: str, client: str) -> None:
        if not token:
            raise _unauthorized_problem()
        # The user is not known yet, so the limit applies to the address. Credentials accepted before are not limited,
        # because behind an Ingress all users have the same address.
        if self._users.knows(token):
            return
        now = self._clock()
        if not self._new.allow(client, now):
            raise too_many("This address")
        if not self._new_of_all.allow(EVERYONE, now):
            raise busy()

    def _log_use(self, user: User) -> None:
        """Log the use of an API key, at most once an hour, because the API server's audit log does not show the key."""
        now = self._clock()
        if user.api_key and now >= self._logged.get(user.api_key, -math.inf) + LOG_SECONDS:
            self._logged[user.api_key] = now
            log.info("API key %s of namespace %s was used", user.api_key, user.namespace)


def too_many(who: str) -> ProblemError:
    """Return the error for a request whose sender exceeds the rate limit. `who` names the sender in the message."""
    message = f"{who} exceeds the rate limit. Retry the request later."
    return ProblemError.of(429, Reason.STORAGE_SERVER_UNAVAILABLE, message)


def busy() -> ProblemError:
    """Return the error for a new credential if the rate limit for all addresses is exceeded."""
    message = "rlrun-server is receiving too many unknown credentials. Retry the request later."
    return ProblemError.of(429, Reason.STORAGE_SERVER_UNAVAILABLE, message)


def not_reviewed(error: Exception) -> ProblemError:
    """Log that a token or permission could not be checked because of `error`, and return the error for the user."""
    USER_REVIEWS.labels("error").inc()
    log.warning("a token or permission could not be checked with the API server: %s", error)
    message = "The API server could not check the token or the permission. Retry the request."
    if isinstance(error, ApiError) and error.status in (401, 403):
        # The sender may be anyone, so the message omits the account's name.
        message = (
            f"The API server did not let rlrun-server check the token or the permission (status {error.status}). Ask "
            "the platform team: rlrun-server's log has the cause."
        )
    return ProblemError.of(503, Reason.STORAGE_SERVER_UNAVAILABLE, message)


def _unauthorized_problem() -> ProblemError:
    message = (
        "The API server does not accept the token, or the API key does not exist or has expired. Log in to the "
        "cluster again, or create a new key."
    )
    return ProblemError.of(401, Reason.TOKEN_INVALID, message)
