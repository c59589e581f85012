"""Phases of runs and of their artifacts. Imports no pydantic, so that commands that print phases start fast."""

from enum import StrEnum


class Phase(StrEnum):
    """Phase of a run."""

    queued = "Queued"
    pending = "Pending"
    running = "Running"
    completed = "Completed"
    failed = "Failed"
    stopped = "Stopped"
    suspended = "Suspended"

    @property
    def finished(self) -> bool:
        """True if a run in this phase has ended."""
        return self in (Phase.completed, Phase.failed, Phase.stopped)


class ArtifactPhase(StrEnum):
    """Phase of an artifact's lifecycle."""

    pending = "Pending"
    uploading = "Uploading"
    ready = "Ready"
    failed = "Failed"
    deleting = "Deleting"
