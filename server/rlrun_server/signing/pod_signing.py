"""Handles a pod's request for signatures. Checks grant, limits, token and permission, cheapest check first."""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rlrun.constants import Reason
from rlrun.kube.errors import ApiError
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import (
    CLOCK_TOLERANCE,
    MAX_GRANT_LIFETIME,
    RequestToSign,
    SignedHeaders,
    StorageGrant,
)
from rlrun.service.errors import ProblemError
from rlrun.storage.errors import StoreError

from rlrun_server.authentication.token_reviews import TokenReviews
from rlrun_server.runtime.metrics import REVIEWS, SIGNATURES
from rlrun_server.runtime.rate_limit import Rate, RateLimiter
from rlrun_server.runtime.settings import ServerSettings
from rlrun_server.signing.credentials import CredentialsMissing
from rlrun_server.signing.permissions import is_allowed, is_written_once
from rlrun_server.signing.s3_request import CONDITION, ONCE, RequestNotAllowed, read_request
from rlrun_server.signing.signer import S3Signer
from rlrun_server.signing.store_safety import StoreSafety

log = logging.getLogger(__name__)

BURST_SECONDS = 4.0
REVIEW_BURST_SECONDS = 10.0


class Signing:
    """Handler of requests for signatures. Every rejection is a ProblemError."""

    def __init__(
        self,
        settings: ServerSettings,
        signer: S3Signer,
        reviews: TokenReviews,
        keys: Callable[[], Sequence[bytes]],
        clock: Callable[[], float],
        safety: StoreSafety,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`clock` is monotonic, in seconds. `now` is compared with the ends of grants."""
        self._now = now
        self._safety = safety
        self._signer = signer
        self._reviews = reviews
        self._keys = keys
        self._clock = clock
        per_second, new = settings.signatures_per_second, settings.reviews_per_second
        self._signatures = RateLimiter(Rate(per_second, BURST_SECONDS * per_second))
        self._new_tokens = RateLimiter(Rate(new, REVIEW_BURST_SECONDS * new))

    async def sign(self, token: str, signed_grant: str, requests: Sequence[RequestToSign]) -> list[SignedHeaders]:
        """Return the signed headers of each request. Signs none if any request is not allowed. Raises ProblemError."""
        grant = signed_text.verify(signed_grant, self._keys(), StorageGrant)
        if grant is None:
            SIGNATURES.labels("unknown", "grant").inc(len(requests))
            raise ProblemError.of(
                403,
                Reason.STORAGE_ACCESS_DENIED,
                "The grant is not signed by this platform's operator, or not valid for this version of rlrun-server.",
            )
        outcome = "error"
        try:
            signed = await self._sign_for(grant, token, requests)
            outcome = "signed"
            return signed
        except ProblemError as error:
            outcome = str(error.status)
            raise
        finally:
            SIGNATURES.labels(grant.role.value, outcome).inc(len(requests))

    async def _sign_for(
        self, grant: StorageGrant, token: str, requests: Sequence[RequestToSign]
    ) -> list[SignedHeaders]:
        self._check_end(grant)
        if not self._signatures.allow(grant.namespace, self._clock(), len(requests)):
            raise _too_many(grant)
        await self._check_token(grant, token)
        try:
            admitted = [self._admit(grant, asked) for asked in requests]
            await self._signer.renew()
            return [self._sign(asked) for asked in admitted]
        except RequestNotAllowed as error:
            log.warning("%s of %s/%s: %s", grant.role, grant.namespace, grant.owner, error)
            raise ProblemError.of(
                403, Reason.STORAGE_ACCESS_DENIED, f"{str(error)[0].upper()}{str(error)[1:]}."
            ) from error
        except CredentialsMissing as error:
            raise ProblemError.of(503, Reason.S3_CREDENTIALS_MISSING, str(error)) from error

    def _check_end(self, grant: StorageGrant) -> None:
        """Raise ProblemError if the grant has ended, or ends later than any valid grant can. Clients retry."""
        now = self._now()
        if grant.ends is None or -CLOCK_TOLERANCE < grant.ends - now <= MAX_GRANT_LIFETIME + CLOCK_TOLERANCE:
            return
        times = f"{grant.ends.isoformat()}; rlrun-server's time is {now.isoformat(timespec='seconds')}"
        message = (
            f"The grant expired at {times}. Retry with the current grant, which the operator renews every 30 minutes."
            if grant.ends <= now
            else f"The grant expires more than 2 hours from now, at {times}. Check the clocks of the cluster's nodes."
        )
        raise ProblemError.of(401, Reason.TOKEN_INVALID, message)

    def _admit(self, grant: StorageGrant, asked: RequestToSign) -> RequestToSign:
        """Check the request, and return it with the headers that its signature must cover. Raises RequestNotAllowed."""
        bucket = _bucket_of(grant, asked.url, self._signer)
        base = self._signer.base_url(bucket)
        request = read_request(asked.method, asked.url, asked.headers, bucket, base)
        if request.may_replace and is_written_once(grant, request):
            # Trainers of version 0.1 do not set the condition, but send every header of this server's response.
            others = {name: value for name, value in asked.headers.items() if name.lower() != CONDITION}
            asked = asked.model_copy(update={"headers": others | {CONDITION: ONCE}})
            request = read_request(asked.method, asked.url, asked.headers, bucket, base)
        if not is_allowed(grant, request):
            raise RequestNotAllowed(f"the {grant.role} may not {request.operation} {request.key!r} in {bucket!r}")
        return asked

    def _sign(self, asked: RequestToSign) -> SignedHeaders:
        signed = self._safety.sign(self._signer, asked)
        condition = {name: value for name, value in asked.headers.items() if name.lower() == CONDITION}
        return signed.model_copy(update={"headers": signed.headers | condition})

    async def _check_token(self, grant: StorageGrant, token: str) -> None:
        require_token(token)
        if not self._reviews.knows(token, grant.audience) and not self._new_tokens.allow(
            grant.namespace, self._clock()
        ):
            raise _too_many(grant)
        try:
            review = await self._reviews.review(token, grant.audience)
        except ApiError as error:
            REVIEWS.labels("error").inc()
            log.warning("a token could not be checked with the API server: %s", error)
            message = "The API server could not check the token. Retry the request."
            raise ProblemError.of(503, Reason.STORAGE_SERVER_UNAVAILABLE, message) from error
        REVIEWS.labels("accepted" if review.is_accepted else "refused").inc()
        if review.namespace != grant.namespace:
            raise _unauthorized_problem()


def require_token(token: str) -> None:
    """Raise ProblemError if the request has no token. Called before its body is read."""
    if not token:
        raise _unauthorized_problem()


def _bucket_of(grant: StorageGrant, url: str, signer: S3Signer) -> str:
    """Return the bucket of the URL, which must be one of the grant's buckets."""
    uris = [uri for uri in (grant.folder, *grant.readable) if uri]
    buckets = dict.fromkeys(uri.removeprefix("s3://").partition("/")[0] for uri in uris)
    path = url.partition("?")[0]
    for bucket in buckets:
        try:
            base = signer.base_url(bucket)
        except StoreError:
            continue  # the pod's own S3 client reports the error
        if path == base or path.startswith(f"{base}/"):
            return bucket
    raise RequestNotAllowed("the URL is not in this run's bucket at the platform's S3 endpoint")


def _unauthorized_problem() -> ProblemError:
    return ProblemError.of(
        401,
        Reason.TOKEN_INVALID,
        "The token is missing, has expired or does not belong to a pod of this run and role. "
        "Retry with the current token, which the kubelet renews while the pod exists.",
    )


def _too_many(grant: StorageGrant) -> ProblemError:
    message = f"Namespace {grant.namespace} exceeds its rate limit. Retry the requests later."
    return ProblemError.of(429, Reason.STORAGE_SERVER_UNAVAILABLE, message)
