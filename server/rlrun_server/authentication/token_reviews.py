"""Lets the API server review ServiceAccount tokens, and caches the results."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rlrun.kube.objects import Obj

from rlrun_server.runtime.caches import ReviewCache

CreateReview = Callable[[Obj], Awaitable[Obj]]

ACCEPTED_SECONDS = 60.0
"""Seconds for which an accepted token is cached. The token of a deleted pod stays valid for up to this time."""
USER_PREFIX = "system:serviceaccount:"


@dataclass(frozen=True)
class Review:
    """Result of a TokenReview."""

    namespace: str = ""
    """Namespace of the ServiceAccount. Empty if the token was rejected or belongs to another kind of user."""
    account: str = ""
    pod: str = ""
    """Name of the pod to which the token is bound. Empty if there is none."""

    @property
    def is_accepted(self) -> bool:
        """True if the API server accepted the token as a ServiceAccount's."""
        return bool(self.namespace)


class TokenReviews:
    """Verifies ServiceAccount tokens with TokenReviews, and caches the results."""

    def __init__(self, create: CreateReview, clock: Callable[[], float]) -> None:
        self._create = create
        self._reviews: ReviewCache[Review] = ReviewCache(lambda review: review.is_accepted, ACCEPTED_SECONDS, clock)

    def knows(self, token: str, audience: str) -> bool:
        """Return whether `review` needs no new request, because the result is cached or a request is in progress."""
        return self._reviews.knows(token_key(token, audience))

    async def review(self, token: str, audience: str) -> Review:
        """Return the review of a token for an audience. Raises ApiError."""

        async def ask() -> Review:
            return read_review(await self._create(token_review(token, [audience])), audience)

        return await self._reviews.get(token_key(token, audience), ask)


def token_review(token: str, audiences: list[str]) -> Obj:
    """Return the TokenReview to create. If `audiences` is empty, the token must be for the API server itself."""
    spec: Obj = {"token": token, **({"audiences": audiences} if audiences else {})}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": spec}


def read_review(answer: Obj, audience: str) -> Review:
    """Return the result in a TokenReview. A token without the audience, or of a human user, counts as rejected."""
    status = answer.get("status") or {}
    user = status.get("user") or {}
    name = str(user.get("username", ""))
    if not status.get("authenticated") or audience not in (status.get("audiences") or []):
        return Review()
    if not name.startswith(USER_PREFIX):
        return Review()
    namespace, _, account = name.removeprefix(USER_PREFIX).partition(":")
    pods = (user.get("extra") or {}).get("authentication.kubernetes.io/pod-name") or [""]
    return Review(namespace, account, str(pods[0]))


def token_key(token: str, audience: str = "") -> bytes:
    """Return the cache key of a token and an audience, a digest that does not reveal the token."""
    return hashlib.sha256(f"{audience}\n{token}".encode("utf-8", "surrogateescape")).digest()
