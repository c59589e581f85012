"""Tracks the current orchestrator of each session, so that a replaced one on a disconnected node cannot train.

The owner is determined by the order of requests to open a session. Clocks are not compared, because those of two nodes
may differ by more than a restart takes.
"""

from collections.abc import Collection

from rlrun.constants import GONE, Reason
from rlrun.service.errors import ProblemError


class SessionOwners:
    """Owner of each session, which is the orchestrator process that opened it last."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._superseded: dict[str, set[str]] = {}
        """Processes that were owners of each session. Each process has a unique id, so none becomes owner again."""

    def take(self, session: str, orchestrator: str) -> None:
        """Make the process `orchestrator` the owner of the session. Raises ProblemError if another process has already
        replaced it.
        """
        superseded = self._superseded.setdefault(session, set())
        if orchestrator in superseded:
            raise _refusal(session)
        previous = self._owners.get(session, orchestrator)
        if previous != orchestrator:
            superseded.add(previous)
        self._owners[session] = orchestrator

    def check(self, session: str, orchestrator: str) -> None:
        """Raise ProblemError if a process other than `orchestrator` owns the session."""
        if self._owners.get(session, orchestrator) != orchestrator:
            raise _refusal(session)

    def keep_only(self, sessions: Collection[str]) -> None:
        """Forget the owners of all other sessions."""
        self._owners = {session: owner for session, owner in self._owners.items() if session in sessions}
        self._superseded = {session: former for session, former in self._superseded.items() if session in sessions}


def _refusal(session: str) -> ProblemError:
    return ProblemError.of(
        GONE,
        Reason.ORCHESTRATOR_SUPERSEDED,
        f"Another orchestrator has since opened session {session!r}. This orchestrator must exit.",
    )
