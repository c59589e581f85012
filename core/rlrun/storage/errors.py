"""Errors of S3 with messages that a user can act on.

S3 servers have dozens of error codes, botocore adds its own exceptions, and the same error (a wrong key, for example)
differs between AWS, MinIO and SeaweedFS. Each is mapped to one of five errors, whose `Problem` names the URI and what
to do. Messages never contain credentials.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from boto3.exceptions import RetriesExceededError, S3TransferFailedError, S3UploadFailedError
from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.storage.manifest import changed_message

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
PATH_STYLE_CODES = frozenset({"PathStyleDomainForbidden", "SecondLevelDomainForbidden", "VirtualHostDomainRequired"})
"""Answers of clouds that take the bucket from the host name only."""
BUSY_CODES = frozenset(
    {
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
    }
)
TOO_MANY_REQUESTS = 429
NO_RESPONSE_ERRORS = (
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
    exceptions.ConnectionError,
    exceptions.ResponseStreamingError,
    RetriesExceededError,
)
"""Errors of a request without a complete response."""


class StoreError(Exception):
    """Base class of storage errors. `problem` is the description for users."""

    reason: ClassVar[str] = Reason.S3_ERROR

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(reason=self.reason, message=message)


class NotFound(StoreError):
    """The object does not exist, or the artifact has no manifest yet."""

    reason = Reason.S3_NOT_FOUND


class AccessDenied(StoreError):
    """The credentials are missing, invalid, or lack a permission."""

    reason = Reason.S3_ACCESS_DENIED


class BucketMissing(StoreError):
    """The bucket does not exist."""

    reason = Reason.S3_BUCKET_MISSING


class Unreachable(StoreError):
    """The endpoint does not respond, or only with server errors. A retry may succeed."""

    reason = Reason.S3_UNREACHABLE


class BodyInterrupted(Unreachable):
    """The endpoint responded, but the rest of the object did not arrive. A retry may succeed."""


class StorageServerUnavailable(Unreachable):
    """rlrun-server, which signs the requests, does not respond. A retry may succeed."""

    reason = Reason.STORAGE_SERVER_UNAVAILABLE


class AlreadyExists(StoreError):
    """The object exists, and was to be written only if it does not."""


class NotImplementedByStore(StoreError):
    """The S3 server lacks an operation, or a condition, that the platform needs. A retry does not help."""

    reason = Reason.S3_NOT_IMPLEMENTED


class Corrupt(StoreError):
    """The bytes differ from those in the manifest."""

    reason = Reason.S3_ARTIFACT_CORRUPT


class ArtifactChanged(Corrupt):
    """The artifact is not the one that was declared Ready. A retry does not help."""

    reason = Reason.ARTIFACT_CHANGED

    def __init__(self, place: object, digest: str, found: str) -> None:
        super().__init__(changed_message(place, digest, found))


class ObjectTooLarge(Corrupt):
    """The object has more than the `limit` bytes that objects of its kind may have."""

    def __init__(self, place: object, limit: int) -> None:
        super().__init__(f"{place} has more than the {limit:,} bytes that are read of it: delete it or upload it again")


MISSING_CREDENTIALS = (
    "put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the S3 Secret, or give the ServiceAccount an identity of the "
    "cloud (s3.credentials.workloadIdentity of the chart)"
)


def classify(error: Exception, place: str, endpoint: str) -> StoreError:
    """Return the `StoreError` for an exception of boto3 at `place` (an s3:// URI) of `endpoint`."""
    if isinstance(error, S3UploadFailedError | S3TransferFailedError):
        inner = error.__cause__ or error.__context__
        if isinstance(inner, ClientError | BotoCoreError):
            error = inner
    if isinstance(error, ClientError):
        return _classify_response(error, place, endpoint)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return AccessDenied(f"no S3 credentials for {place}: {MISSING_CREDENTIALS}")
    if isinstance(error, exceptions.NoRegionError):
        return AccessDenied(f"no S3 region for {place}: put AWS_DEFAULT_REGION into the S3 Secret")
    if isinstance(error, NO_RESPONSE_ERRORS):
        return Unreachable(
            f"the S3 endpoint {endpoint} does not respond for {place} ({type(error).__name__}): check "
            "AWS_ENDPOINT_URL_S3, the endpoint's DNS name and that network policies let this pod reach it"
        )
    return StoreError(f"S3 request for {place} through {endpoint} failed: {error}")


def _classify_response(error: ClientError, place: str, endpoint: str) -> StoreError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    bucket = place.removeprefix("s3://").split("/", 1)[0]
    if code in BUCKET_CODES or (code in MISSING_CODES and error.operation_name in {"HeadBucket", "ListObjectsV2"}):
        return BucketMissing(f"bucket {bucket!r} does not exist at {endpoint}: create it or correct the S3 settings")
    if code in MISSING_CODES:
        return NotFound(f"{place} does not exist: check the URI, or whether retention has deleted it")
    if code in PATH_STYLE_CODES:
        return StoreError(
            f"{endpoint} does not take a bucket in the path ({code}): set s3.addressingStyle of the chart to virtual"
        )
    if code in DENIED_CODES or status in (401, 403):
        return AccessDenied(
            f"{endpoint} rejects {error.operation_name} on {place} ({code}): check AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the S3 Secret, or the workload identity, and that it may read, write, list and "
            f"delete in {bucket!r}"
        )
    if code == "PreconditionFailed" or status == 412:
        return AlreadyExists(f"{place} exists already and is not replaced")
    if code == "NotImplemented" or status == 501:
        return NotImplementedByStore(
            f"{endpoint} does not implement {error.operation_name} on {place} with these headers. If it is a write "
            "that must not replace an object, the S3 server lacks If-None-Match: use one that has it"
        )
    if code in BUSY_CODES or status == TOO_MANY_REQUESTS or status >= 500:
        return Unreachable(
            f"{endpoint} responds to {error.operation_name} on {place} with {status} {code} after all retries: "
            "check the health of the S3 service; the operation is retried"
        )
    return StoreError(f"{endpoint} responds to {error.operation_name} on {place} with {status} {code}")


@contextmanager
def translate_s3_errors(place: object, endpoint: str) -> Iterator[None]:
    """Convert exceptions of boto3 into a `StoreError` about `place`."""
    try:
        yield
    except (ClientError, BotoCoreError, S3UploadFailedError, S3TransferFailedError, RetriesExceededError) as error:
        raise classify(error, str(place), endpoint) from error
