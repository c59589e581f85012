"""Answers to requests that cannot be answered because of S3."""

from rlrun.constants import Reason
from rlrun.storage.errors import Repeat, StoreError

from rlrun_server.rest.base.problems import RestError
from rlrun_server.signing.credentials import CredentialsMissing

FAILED_DEPENDENCY = 424
"""Status of failures that no repetition of the request mends. 403 would mean that the caller may not read the files."""
CAUSES: dict[str, str] = {
    Reason.S3_ACCESS_DENIED: "the credentials of rlrun-server are wrong or lack a permission",
    Reason.S3_BUCKET_MISSING: "the bucket of the platform does not exist",
    Reason.S3_NOT_FOUND: "a file is gone",
    Reason.S3_ARTIFACT_CORRUPT: "a file is damaged or too large",
    Reason.S3_NOT_IMPLEMENTED: "the S3 server lacks an operation that the platform needs",
    Reason.S3_CREDENTIALS_MISSING: "rlrun-server has no credentials for S3",
    Reason.S3_UNREACHABLE: "S3 does not answer rlrun-server",
    Reason.S3_FULL: "S3 accepts no more bytes",
}
"""Causes by reason. The error itself names bucket, keys and settings of the platform, which are for its log only."""


_LOG = "the platform team: S3's answer is in the log of rlrun-server."
ADVICE = {
    Repeat.later: "Repeat the request later.",
    Repeat.grace: f"Repeat the request later. If this goes on, ask {_LOG}",
    Repeat.never: f"A repetition does not help. Ask {_LOG}",
}


def store_failure(error: Exception) -> RestError:
    """Return the answer for a StoreError, for missing credentials, or for S3 that does not answer in time."""
    reason, repeat = Reason.S3_UNREACHABLE.value, Repeat.later
    if isinstance(error, CredentialsMissing):
        reason, repeat = Reason.S3_CREDENTIALS_MISSING.value, Repeat.grace
    elif isinstance(error, StoreError):
        reason, repeat = error.reason, error.repeat
    cause = CAUSES.get(reason, "S3 refuses a request of rlrun-server")
    status = FAILED_DEPENDENCY if repeat is Repeat.never else 503
    return RestError(status, reason, f"{cause[0].upper()}{cause[1:]}. {ADVICE[repeat]}")
