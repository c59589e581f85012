"""What went wrong in S3, in words that a user can act on.

S3 servers answer in dozens of codes, botocore adds exceptions of its own, and the same mistake (a wrong key, say) looks
different on AWS, MinIO and SeaweedFS. Here each of them becomes one of five errors, and every error carries a `Problem`
that names the place and the next step. Credentials never appear in a message.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from boto3.exceptions import RetriesExceededError, S3TransferFailedError, S3UploadFailedError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as NoConnectionError

from rlrun.schema.wire import Problem

BUCKET_CODES = frozenset({"NoSuchBucket"})
MISSING_CODES = frozenset({"NoSuchKey", "NotFound", "404"})
DENIED_CODES = frozenset(
    {
        "401",
        "403",
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
BUSY_CODES = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"})
SILENCE = (HTTPClientError, IncompleteReadError, NoConnectionError, ResponseStreamingError, RetriesExceededError)


class StoreError(Exception):
    """Base of everything the store raises; `problem` is what to show to a person."""

    reason: ClassVar[str] = "S3Error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(reason=self.reason, message=message)


class NotFound(StoreError):
    """Nothing lies at that place (or an artifact there has no manifest yet)."""

    reason = "S3NotFound"


class AccessDenied(StoreError):
    """The credentials are missing, wrong, or not allowed to do this."""

    reason = "S3AccessDenied"


class BucketMissing(StoreError):
    """The bucket does not exist."""

    reason = "S3BucketMissing"


class Unreachable(StoreError):
    """The endpoint does not answer, or only with server errors; a later try may succeed."""

    reason = "S3Unreachable"


class Corrupt(StoreError):
    """The bytes are not those that the manifest promises."""

    reason = "S3ArtifactCorrupt"


def classify(error: Exception, place: str, endpoint: str) -> StoreError:
    """The `StoreError` for what boto3 raised while working on `place` (an s3:// uri) through `endpoint`."""
    if isinstance(error, S3UploadFailedError | S3TransferFailedError):
        inner = error.__cause__ or error.__context__
        if isinstance(inner, ClientError | BotoCoreError):
            error = inner
    if isinstance(error, ClientError):
        return _classify_answer(error, place, endpoint)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return AccessDenied(
            f"no S3 credentials for {place}: put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the S3 Secret"
        )
    if isinstance(error, NoRegionError):
        return AccessDenied(f"no S3 region for {place}: put AWS_DEFAULT_REGION into the S3 Secret")
    if isinstance(error, SILENCE):
        return Unreachable(
            f"the S3 endpoint {endpoint} does not answer for {place} ({type(error).__name__}): check "
            "AWS_ENDPOINT_URL_S3, the endpoint's DNS name and that network policies let this pod reach it"
        )
    return StoreError(f"S3 request for {place} through {endpoint} failed: {error}")


def _classify_answer(error: ClientError, place: str, endpoint: str) -> StoreError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    bucket = place.removeprefix("s3://").split("/", 1)[0]
    if code in BUCKET_CODES or (code in MISSING_CODES and error.operation_name in {"HeadBucket", "ListObjectsV2"}):
        return BucketMissing(f"bucket {bucket!r} does not exist at {endpoint}: create it or correct the S3 settings")
    if code in MISSING_CODES:
        return NotFound(f"{place} does not exist: check the uri, or whether retention has deleted it")
    if code in DENIED_CODES or status in (401, 403):
        return AccessDenied(
            f"{endpoint} refuses {error.operation_name} on {place} ({code}): check AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY in the S3 Secret and that this key may read, write, list and delete in {bucket!r}"
        )
    if code in BUSY_CODES or status >= 500:
        return Unreachable(
            f"{endpoint} answers {error.operation_name} on {place} with {status} {code} after all retries: "
            "check the health of the S3 service; the work is tried again"
        )
    return StoreError(f"{endpoint} answers {error.operation_name} on {place} with {status} {code}")


@contextmanager
def translated(place: object, endpoint: str) -> Iterator[None]:
    """Turns whatever boto3 raises inside into a `StoreError` about `place`."""
    try:
        yield
    except (ClientError, BotoCoreError, S3UploadFailedError, S3TransferFailedError, RetriesExceededError) as error:
        raise classify(error, str(place), endpoint) from error
