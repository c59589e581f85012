"""Interface between sessions and the library that trains: all that is torch lies behind it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import Sample, SessionSpec

from rlrun_trainer.artifacts.artifact_files import Files
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress


class Backend(Protocol):
    """Base model with a slot for the training state of each session.

    Blocking: sessions call the methods on the compute thread, one at a time. Properties are read from any thread. All
    methods raise ProblemError with the slot as it was.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the model. Token ids must be smaller."""

    @property
    def warnings(self) -> Sequence[Problem]:
        """Findings about the model that the users of every session should know."""

    def open_slot(self, name: str, spec: SessionSpec) -> Sequence[Problem]:
        """Claim a slot in the state that the seed gives. Return findings about it that its users should know."""

    def close_slot(self, name: str) -> None:
        """Release the slot. No effect for an unknown name."""

    def restore(self, name: str, folder: Path, resume: bool) -> CheckpointProgress:
        """Load a checkpoint into a slot that was just opened. `resume`: this run saved it.

        The caller closes the slot after ProblemError.
        """

    def train(self, name: str, spec: SessionSpec, samples: Sequence[Sample], version: int) -> dict[str, float]:
        """Make the step that follows `version` and return its metrics."""

    def policy_files(self, name: str) -> Files:
        """Return the policy as the files that inference engines load."""

    def snapshot(self, name: str, progress: CheckpointProgress) -> Files:
        """Return the files of a checkpoint. Later steps do not change them."""

    def heartbeat(self) -> None:
        """Show that all processes of the backend are alive. Called regularly between steps."""

    def stop(self) -> None:
        """End the other processes of the backend."""
