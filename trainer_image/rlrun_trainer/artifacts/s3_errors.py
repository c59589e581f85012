"""Problems of the trainer that a failed request to S3 causes, and their HTTP statuses.

The status decides what the orchestrator does: it retries after 503, checks the session's state after 404 and 409, and
reports 422, 424 and 507, because the same request would fail again.
"""

from rlrun.constants import FAILED_DEPENDENCY, LATER, UNPROCESSABLE
from rlrun.service.errors import ProblemError
from rlrun.storage.errors import Corrupt, NotFound, Repeat, StoreError


def refused_opening(error: StoreError) -> ProblemError:
    """Return the error for a session that could not be opened because of S3. Denied access is retried."""
    status = FAILED_DEPENDENCY if error.repeat is Repeat.never else LATER
    if isinstance(error, NotFound | Corrupt):
        status = UNPROCESSABLE
    return ProblemError(status, error.problem)


def refused_publishing(error: StoreError) -> ProblemError:
    """Return the error for a step whose policy S3 rejected. A repeated request for the step publishes it."""
    message = f"The step is done but not published: {error.problem.message}"
    return ProblemError.of(LATER, error.problem.reason, message)
