"""Answers to requests that cannot be answered because of S3."""

from rlrun.constants import Reason
from rlrun.storage.errors import StoreError, Unreachable

from rlrun_server.rest.base.problems import RestError
from rlrun_server.signing.credentials import CredentialsMissing

FAILED_DEPENDENCY = 424
"""Status of failures that no repetition of the request mends. 403 would mean that the caller may not read the files."""
CAUSES: dict[str, str] = {
    Reason.S3_ACCESS_DENIED: "the credentials of rlrun-server are wrong or lack a permission",
    Reason.S3_BUCKET_MISSING: "the bucket of the platform does not exist",
    Reason.S3_NOT_FOUND: "a file of the run is gone",
    Reason.S3_ARTIFACT_CORRUPT: "a file of the run is damaged or too large",
    Reason.S3_NOT_IMPLEMENTED: "the S3 server lacks an operation that the platform needs",
}
"""Causes by reason. The error itself names bucket, keys and settings of the platform, which are for its log only."""


def store_failure(error: Exception) -> RestError:
    """Return the answer for a StoreError, for missing credentials, or for S3 that does not answer in time."""
    if isinstance(error, CredentialsMissing):
        detail = "rlrun-server has no credentials for S3. Repeat the request later, or ask the platform team."
        return RestError(503, Reason.S3_CREDENTIALS_MISSING, detail)
    if isinstance(error, StoreError) and not isinstance(error, Unreachable):
        cause = CAUSES.get(error.reason, "S3 refuses a request of rlrun-server")
        detail = (
            f"{cause[0].upper()}{cause[1:]}. A repetition does not help. Ask the platform team: S3's answer is in the "
            "log of rlrun-server."
        )
        return RestError(FAILED_DEPENDENCY, error.reason, detail)
    return RestError(503, Reason.S3_UNREACHABLE, "S3 does not answer rlrun-server. Repeat the request later.")
