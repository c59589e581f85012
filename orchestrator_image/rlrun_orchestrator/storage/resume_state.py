"""State of the orchestrator, stored in S3 after each step and in the trainer's checkpoints."""

import logging
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError
from rlrun.api.base.schema import Schema

from rlrun_orchestrator.data.example_sampler import SamplerState
from rlrun_orchestrator.data.sent_batch import SentBatch
from rlrun_orchestrator.status.run_progress import ProgressState

log = logging.getLogger(__name__)

VERSION = 3


class ResumeState(Schema, extra="ignore"):
    """State from which the run's next process, or another run that starts from the run's checkpoint, continues."""

    version: int = VERSION
    run: str
    """UID of the run."""
    step: int
    """Number of completed optimizer steps."""
    reward: float | None = None
    """Mean reward of the newest step. The trainer writes this value into its artifacts' manifests."""
    board: ProgressState
    deal: SamplerState
    sent: list[SentBatch]
    """Batches for the next step that this process or earlier processes sent, oldest first."""
    reporter: dict[str, Any] = Field(default_factory=dict)
    evaluator: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None, place: str) -> "ResumeState | None":
        """Parse a state. Returns None if the state is empty or, with a warning that names `place`, if it is
        unreadable.
        """
        if not raw:
            return None
        if raw.get("version") != VERSION:
            log.warning(
                "ignoring the state in %s, which has version %r instead of %d", place, raw.get("version"), VERSION
            )
            return None
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            log.warning("ignoring the state in %s, which is malformed (%s)", place, error)
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        return self.model_dump(mode="json", by_alias=True)
