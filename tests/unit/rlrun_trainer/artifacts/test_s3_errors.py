"""Errors of S3 while a session opens: the orchestrator repeats what may succeed, and ends the run for the rest."""

import pytest
from rlrun.constants import FAILED_DEPENDENCY, LATER, UNPROCESSABLE
from rlrun.storage.errors import (
    AccessDenied,
    BucketMissing,
    Corrupt,
    NotFound,
    NotImplementedByStore,
    StorageServerUnavailable,
    StoreError,
    StoreFull,
    Unreachable,
)
from rlrun_trainer.artifacts.s3_errors import refused_opening


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (AccessDenied, LATER),
        (BucketMissing, LATER),
        (StorageServerUnavailable, LATER),
        (StoreFull, LATER),
        (Unreachable, LATER),
        (NotFound, UNPROCESSABLE),
        (Corrupt, UNPROCESSABLE),
        (NotImplementedByStore, FAILED_DEPENDENCY),
    ],
)
def test_a_refused_access_does_not_end_the_run(error: type[StoreError], status: int) -> None:
    refused = refused_opening(error("m"))
    assert (refused.status, refused.problem.reason) == (status, error.reason)
