"""Keeps the current list of runs (`PoolOrder` or `TrainerOrder`) for a process in a shared pool, refuses late lists,
and finds the run to which a token belongs.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from rlrun.constants import CONFLICT, Reason
from rlrun.protocol.shared_pool import OrderedRun
from rlrun.service.errors import ProblemError

LATE_MILLISECONDS = 5 * 60 * 1000
"""Maximum age in milliseconds of a late list of runs, relative to the list in force. A list with an even lower number
was sent after the API server's clock was set back, so it is accepted.
"""
SCHEME = "Bearer "

Run = TypeVar("Run", bound=OrderedRun)


class OrderInForce(Generic[Run]):
    """Runs of the list in force. Empty until `replace` puts the first list in force."""

    def __init__(self) -> None:
        self._number = 0
        self._runs: dict[str, Run] = {}

    @property
    def runs(self) -> Mapping[str, Run]:
        """Runs of the list in force, by uid."""
        return self._runs

    def check(self, number: int) -> None:
        """Raise ProblemError (`InvalidRequest`, 409) if a list with this number predates the list in force."""
        if 0 < self._number - number < LATE_MILLISECONDS:
            late = (self._number - number) / 1000
            message = f"this list of runs is {late:.3f} s older than the list in force; send the newest list"
            raise ProblemError.of(CONFLICT, Reason.INVALID_REQUEST, message)

    def replace(self, runs: Iterable[Run], number: int) -> None:
        """Put a list of runs in force. `check` must have accepted its number."""
        self._number = number
        self._runs = {run.uid: run for run in runs}

    def find(self, authorization: str) -> Run | None:
        """Return the run whose token is in the header `Authorization`, or None if the token belongs to no run. The
        duration does not depend on which run matches.
        """
        if not authorization.startswith(SCHEME):
            return None
        token = authorization.removeprefix(SCHEME).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(token).hexdigest()
        found = [run for run in self._runs.values() if hmac.compare_digest(run.token_digest, digest)]
        return found[0] if found else None
