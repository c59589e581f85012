"""S3 errors with messages that users can act on.

S3 servers have dozens of error codes, botocore adds its own exceptions, and the same error (for example a wrong key)
differs between AWS, MinIO, Ceph and SeaweedFS. `ANSWERS` and `STATUSES` map each response to an error class, which
determines whether a retry may succeed, and to advice. Messages quote S3: status, code, region and text. They never
contain credentials.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from botocore import exceptions
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from pydantic import ValidationError

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.storage.manifest import changed_message

NO_RESPONSE_ERRORS = (
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
    exceptions.ConnectionError,
    exceptions.ResponseStreamingError,
)
"""Errors of a request without a complete response."""
CREDENTIAL_ERRORS = (
    exceptions.CredentialRetrievalError,
    exceptions.MetadataRetrievalError,
    exceptions.SSOError,
    exceptions.InvalidConfigError,
    exceptions.ConfigNotFound,
    exceptions.ProfileNotFound,
)
"""Errors of credential providers."""
MESSAGE_CHARACTERS = 300
"""Maximum length of S3's own text in a message."""


class Repeat(StrEnum):
    """Advice on retries after an error."""

    later = "later"
    """The store may recover. Retry for as long as the operation can wait."""
    grace = "grace"
    """Access was refused, the bucket is missing, or the cause is unknown. A rotated key, a renewed token or a corrected
    clock takes effect within minutes: retry for a grace period, then fail.
    """
    never = "never"
    """A retry would fail in the same way."""


class StoreError(Exception):
    """Base class of storage errors. `problem` is the description for users."""

    reason: ClassVar[str] = Reason.S3_ERROR
    repeat: ClassVar[Repeat] = Repeat.grace

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(reason=self.reason, message=message)


class NotFound(StoreError):
    """The object does not exist, or the artifact has no manifest yet."""

    reason = Reason.S3_NOT_FOUND
    repeat = Repeat.never


class AccessDenied(StoreError):
    """S3 refuses access because of credentials, permissions, region or clock. A retry may succeed within a grace
    period.
    """

    reason = Reason.S3_ACCESS_DENIED


class BucketMissing(StoreError):
    """The bucket does not exist."""

    reason = Reason.S3_BUCKET_MISSING


class Unreachable(StoreError):
    """The endpoint does not respond, or only with server errors. A retry may succeed."""

    reason = Reason.S3_UNREACHABLE
    repeat = Repeat.later


class BodyInterrupted(Unreachable):
    """The endpoint responded, but the rest of the object did not arrive. A retry may succeed."""


class StorageServerUnavailable(Unreachable):
    """rlrun-server, which signs the requests, does not respond. A retry may succeed."""

    reason = Reason.STORAGE_SERVER_UNAVAILABLE


class StoreFull(Unreachable):
    """The store accepts no more data: a quota or its disks are full. Reads work, and a retry may succeed."""

    reason = Reason.S3_FULL


class AlreadyExists(StoreError):
    """The object already exists, and the request must not replace it."""

    repeat = Repeat.never


class ArtifactExists(AlreadyExists):
    """The folder contains a different complete artifact. A retry does not help."""


class NotImplementedByStore(StoreError):
    """The S3 server lacks an operation or condition that the platform needs. A retry does not help."""

    reason = Reason.S3_NOT_IMPLEMENTED
    repeat = Repeat.never


class Corrupt(StoreError):
    """The manifest is invalid, or the files differ from their entries in it."""

    reason = Reason.S3_ARTIFACT_CORRUPT
    repeat = Repeat.never


class ArtifactChanged(Corrupt):
    """The artifact differs from the one that became Ready. A retry does not help."""

    reason = Reason.ARTIFACT_CHANGED

    def __init__(self, place: object, digest: str, found: str) -> None:
        super().__init__(changed_message(place, digest, found))


class ObjectTooLarge(Corrupt):
    """The object is larger than `limit` bytes, the maximum for objects of its kind."""

    def __init__(self, place: object, limit: int) -> None:
        super().__init__(f"{place} is larger than the limit of {limit:,} bytes: delete it, or upload a smaller one")


class NotAnAnswer(Exception):
    """Raised for a successful response that is not from S3, for example the login page of a proxy."""


@dataclass(frozen=True)
class AnswerMeaning:
    """Error class and advice for an S3 response."""

    error: type[StoreError]
    advice: str
    """Next step. `{bucket}` is the bucket's name."""


MISSING_CREDENTIALS = (
    "put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the S3 Secret, or give the ServiceAccount a workload "
    "identity (s3.credentials.workloadIdentity in the chart)"
)
ACCESS = AnswerMeaning(
    AccessDenied,
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the S3 Secret, or the workload identity, and its "
    "permissions to read, write, list and delete in {bucket!r}",
)
EXPIRED = AnswerMeaning(
    AccessDenied,
    "temporary credentials have expired: renew AWS_SESSION_TOKEN and its access key in the S3 Secret, or check the "
    "workload identity",
)
CLOCK = AnswerMeaning(
    AccessDenied,
    "the clocks of S3 and of the node that signed the request differ by minutes: synchronize both (chrony, NTP). "
    "Requests are signed on the node of rlrun-server, or by this process if it has a key",
)
NO_CODE = AnswerMeaning(
    AccessDenied,
    "the response has no S3 error code: if a proxy or firewall sent it, allow requests to S3; otherwise "
    + ACCESS.advice,
)
REGION = AnswerMeaning(
    AccessDenied,
    "set s3.region in the chart (AWS_DEFAULT_REGION) to the region of {bucket!r}, and s3.endpoint, if it is set, to "
    "the endpoint of that region. Requests are signed for one region and do not follow redirects",
)
SUSPENDED = AnswerMeaning(
    AccessDenied, "the account that owns the key is suspended or unpaid: ask the provider of the S3 service"
)
NO_BUCKET = AnswerMeaning(BucketMissing, "bucket {bucket!r} does not exist: create it or correct the S3 settings")
NO_OBJECT = AnswerMeaning(NotFound, "the object does not exist: check the URI, or whether retention has deleted it")
FULL = AnswerMeaning(
    StoreFull,
    "the store is full: raise the quota of the bucket, user or project, delete objects, or add disks to the S3 "
    "service; the operation is retried",
)
TOO_LARGE = AnswerMeaning(
    StoreError,
    "a proxy or the S3 service limits the size of requests: allow 64 MiB (client_max_body_size of nginx)",
)
BUSY = AnswerMeaning(Unreachable, "check the health of the S3 service; the operation is retried")
NOT_S3 = AnswerMeaning(
    Unreachable,
    "check that s3.endpoint in the chart is the address of the S3 service, and that no proxy or login page responds "
    "instead; the operation is retried",
)
UNSUPPORTED = AnswerMeaning(
    NotImplementedByStore,
    "if the request is a conditional write, the S3 server does not support If-None-Match: use a server that does",
)
PATH_STYLE = AnswerMeaning(
    StoreError, "set s3.addressingStyle in the chart to virtual: this server requires the bucket in the host name"
)
EXISTS = AnswerMeaning(AlreadyExists, "the object already exists and is not replaced")
UNKNOWN = AnswerMeaning(StoreError, "see the documentation of the S3 service for this response")

_MEANINGS: tuple[tuple[AnswerMeaning, str], ...] = (
    (
        ACCESS,
        "AccessDenied AllAccessDisabled AuthorizationQueryParametersError CredentialsNotSupported Forbidden "
        "InvalidAccessKeyId InvalidClientTokenId InvalidSecurity MissingAuthenticationToken MissingSecurityHeader "
        "NotSignedUp SignatureDoesNotMatch Unauthorized UnrecognizedClientException",
    ),
    (NO_CODE, "401 403"),
    (
        EXPIRED,
        "CredentialsExpired ExpiredToken ExpiredTokenException IDPCommunicationError InvalidIdentityToken InvalidToken "
        "TokenRefreshRequired",
    ),
    (CLOCK, "RequestExpired RequestInTheFuture RequestNotYetValid RequestTimeTooSkewed"),
    (
        REGION,
        "301 302 307 308 AuthorizationHeaderMalformed BadRedirect EndpointNotFound IllegalLocationConstraintException "
        "IncorrectEndpoint InvalidRegion PermanentRedirect Redirect TemporaryRedirect",
    ),
    (SUSPENDED, "AccountProblem InvalidPayer UserDisable UserSuspended"),
    (NO_BUCKET, "NoSuchBucket"),
    (NO_OBJECT, "NoSuchKey NoSuchVersion"),
    (
        FULL,
        "507 BucketQuotaExceeded EntityQuotaExceeded InsufficientCapacity InsufficientStorage QuotaExceeded "
        "StorageLimitExceeded StorageQuotaExceeded TooManyObjects XMinioAdminBucketQuotaExceeded XMinioStorageFull",
    ),
    (
        BUSY,
        "408 425 429 BandwidthLimitExceeded Busy ConditionalRequestConflict InternalError OperationAborted "
        "RequestLimitExceeded RequestThrottled RequestTimeout ServerBusy ServiceUnavailable SlowDown SlowDownRead "
        "SlowDownWrite Throttling ThrottlingException TooManyRequests TooManyRequestsException XMinioBackendDown "
        "XMinioReadQuorum XMinioServerNotInitialized XMinioWriteQuorum",
    ),
    (TOO_LARGE, "413 EntityTooLarge"),
    (NOT_S3, "404 407 NotFound"),
    (UNSUPPORTED, "405 501 MethodNotAllowed NotImplemented"),
    (PATH_STYLE, "PathStyleDomainForbidden SecondLevelDomainForbidden VirtualHostDomainRequired"),
    (EXISTS, "412 PreconditionFailed"),
)
ANSWERS: Mapping[str, AnswerMeaning] = {code: meaning for meaning, codes in _MEANINGS for code in codes.split()}
"""Meanings by error code. For a response without a code, botocore uses the HTTP status as the code. A 404 without a
code does not mean that the object is missing: an ingress without an S3 service behind it also responds with 404.
"""
STATUSES = frozenset({301, 302, 307, 308, 401, 403, 405, 408, 412, 413, 429, 501, 507})
"""Statuses that determine the meaning of a response with an unknown error code."""


@dataclass(frozen=True)
class S3Answer:
    """Error response of S3."""

    operation: str
    status: int
    code: str = ""
    text: str = ""
    """Message text in S3's response."""
    region: str = ""
    """Region of the bucket, if S3 reports it."""

    @classmethod
    def of(cls, error: ClientError) -> "S3Answer":
        """Return the response in an exception of botocore."""
        given, meta = error.response.get("Error") or {}, error.response.get("ResponseMetadata") or {}
        headers = meta.get("HTTPHeaders") or {}
        region = given.get("Region") or headers.get("x-amz-bucket-region") or ""
        text, status = one_line(given.get("Message")), int(meta.get("HTTPStatusCode") or 0)
        return cls(error.operation_name, status, one_line(given.get("Code")), text, one_line(region))

    @property
    def meaning(self) -> AnswerMeaning:
        """Meaning of the response, by its code or else by its status."""
        meaning = ANSWERS.get(self.code)
        if meaning is None and self.status in STATUSES:
            meaning = ACCESS if self.status in (401, 403) else ANSWERS[str(self.status)]
        if meaning is None:
            meaning = BUSY if self.status >= 500 else UNKNOWN
        if meaning is ACCESS and ("has expired" in self.text or "not yet valid" in self.text):
            # A refused signature in a URL has this message with the code AccessDenied.
            return CLOCK
        return meaning

    def to_error(self, place: str, endpoint: str) -> StoreError:
        """Return the error to raise for a request for `place`, an s3:// URI."""
        advice = self.meaning.advice.format(bucket=place.removeprefix("s3://").split("/", 1)[0])
        status = "" if self.code == str(self.status) else str(self.status or "")
        words = " ".join(word for word in (status, self.code) if word) or "no status"
        details = [f'"{self.text}"'] if self.text and self.text != self.code else []
        if self.region:
            details.append(f"region of the bucket: {self.region}")
        own = f" ({'; '.join(details)})" if details else ""
        return self.meaning.error(f"{endpoint} responded to {self.operation} for {place} with {words}{own}: {advice}")


def classify(error: Exception, place: str, endpoint: str) -> StoreError:
    """Return the `StoreError` for an exception that boto3 raised in a request for `place` (an s3:// URI)."""
    if isinstance(error, ClientError):
        return S3Answer.of(error).to_error(place, endpoint)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return AccessDenied(f"no S3 credentials for {place}: {MISSING_CREDENTIALS}")
    if isinstance(error, CREDENTIAL_ERRORS):
        return AccessDenied(f"no S3 credentials for {place}: {one_line(error)}. To fix this, {MISSING_CREDENTIALS}")
    if isinstance(error, exceptions.NoRegionError):
        return AccessDenied(f"no S3 region for {place}: set s3.region in the chart")
    if isinstance(error, exceptions.SSLError):
        return Unreachable(
            f"cannot access {place}: the certificate of the S3 endpoint {endpoint} is not trusted ({one_line(error)}). "
            f"Add its CA to caBundle in the chart, or correct the certificate or the host name in s3.endpoint"
        )
    if isinstance(error, NO_RESPONSE_ERRORS):
        return Unreachable(
            f"the S3 endpoint {endpoint} does not respond to the request for {place} ({type(error).__name__}): check "
            f"s3.endpoint in the chart, its DNS name, and that NetworkPolicies allow this pod to reach it"
        )
    if not isinstance(error, BotoCoreError):
        what = one_line(error) or type(error).__name__
        return Unreachable(f"the response of {endpoint} for {place} is not from S3 ({what}): {NOT_S3.advice}")
    return StoreError(f"S3 request for {place} through {endpoint} failed: {error}")


@contextmanager
def translate_s3_errors(place: object, endpoint: str) -> Iterator[None]:
    """Convert exceptions of boto3 into a `StoreError` about `place`.

    botocore's parsers raise LookupError and ValueError for responses that are not from S3.
    """
    try:
        yield
    except ValidationError:
        # A request that cannot be signed, not a response.
        raise
    except (ClientError, BotoCoreError, ResponseParserError, NotAnAnswer, LookupError, ValueError) as error:
        raise classify(error, str(place), endpoint) from error


def one_line(text: Any) -> str:
    """Return an untrusted text as one line of at most MESSAGE_CHARACTERS, without unprintable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text or "")[: 4 * MESSAGE_CHARACTERS]).split())
    return line[:MESSAGE_CHARACTERS].rstrip(".")
