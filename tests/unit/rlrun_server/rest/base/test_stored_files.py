"""What a user is told when rlrun-server cannot use S3."""

import pytest
from rlrun.constants import Reason
from rlrun.storage.errors import (
    AccessDenied,
    BodyInterrupted,
    BucketMissing,
    Corrupt,
    NotFound,
    NotImplementedByStore,
    StoreError,
    StoreFull,
    Unreachable,
)
from rlrun_server.rest.base.stored_files import store_failure
from rlrun_server.signing.credentials import CredentialsMissing

SECRETS = "http://s3.internal:9000 rejects GetObject on s3://platform-bucket/team/key (InvalidAccessKeyId)"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (AccessDenied(SECRETS), 503, Reason.S3_ACCESS_DENIED),
        (BucketMissing(SECRETS), 503, Reason.S3_BUCKET_MISSING),
        (NotImplementedByStore(SECRETS), 424, Reason.S3_NOT_IMPLEMENTED),
        (NotFound(SECRETS), 424, Reason.S3_NOT_FOUND),
        (Corrupt(SECRETS), 424, Reason.S3_ARTIFACT_CORRUPT),
        (StoreError(SECRETS), 503, Reason.S3_ERROR),
        (Unreachable(SECRETS), 503, Reason.S3_UNREACHABLE),
        (StoreFull(SECRETS), 503, Reason.S3_FULL),
        (BodyInterrupted(SECRETS), 503, Reason.S3_UNREACHABLE),
        (TimeoutError(), 503, Reason.S3_UNREACHABLE),
        (CredentialsMissing(SECRETS), 503, Reason.S3_CREDENTIALS_MISSING),
    ],
)
def test_only_what_a_repetition_may_mend_is_to_be_repeated(error: Exception, status: int, reason: str) -> None:
    found = store_failure(error)
    assert (found.status, found.reason) == (status, reason)
    assert ("Retry the request later" in found.detail) is (status == 503)
    assert ("Retrying does not help" in found.detail) is (status == 424)
    assert ("platform team" in found.detail) is (reason not in (Reason.S3_UNREACHABLE, Reason.S3_FULL))
    for secret in ("s3.internal", "platform-bucket", "InvalidAccessKeyId", "s3://"):
        assert secret not in found.detail
