"""Interface through which sessions use the training library. It hides torch from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rlrun.protocol.client_command import ForwardBackward, OptimStep
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import Sample
from rlrun.protocol.trainer import SessionSpec

from rlrun_trainer.artifacts.artifact_files import Files
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.runtime.compute_thread import Units


class Backend(Protocol):
    """Base model with a slot for the training state of each session.

    Methods block: sessions call them on the compute thread, one at a time. Properties may be read from any thread. If a
    method raises ProblemError, the slot's weights and moments are unchanged, except after `restore`.
    """

    @property
    def warnings(self) -> Sequence[Problem]:
        """Warnings about the model for the users of every session."""

    def open_slot(self, name: str, spec: SessionSpec) -> Sequence[Problem]:
        """Claim a slot with the initial state given by the spec's seed. Returns warnings about the slot's state for the
        users of the session.
        """

    def close_slot(self, name: str) -> None:
        """Release the slot. An unknown name has no effect."""

    def restore(self, name: str, folder: Path, resume: bool, optimizer: bool = True) -> CheckpointProgress:
        """Load a checkpoint into a newly opened slot. `resume` is True if this run saved the checkpoint. If
        `optimizer` is False, only the weights are loaded: the optimizer, the schedule and the random numbers stay in
        their initial state.

        After ProblemError the caller must close the slot.
        """

    def train(self, name: str, spec: SessionSpec, samples: Sequence[Sample], version: int) -> Units[dict[str, float]]:
        """Run the training step from `version` to the next version, and return its metrics. The step is split into
        `Units`; other sessions may call methods between two units. Raises ProblemError (BatchInvalid) for a token
        outside of the vocabulary, and for a value that is not a log-probability.
        """

    def forward_backward(
        self, name: str, spec: SessionSpec, command: ForwardBackward, buffers: memoryview
    ) -> Units[tuple[dict[str, float], list[bytes]]]:
        """Add the gradient of a client's loss to the slot's gradient, unless the command is `forward_only`. Returns
        metrics, and the log-probabilities of each datum as float32. `buffers` are the bytes after the command's header,
        with the sizes that the header declares. Raises ProblemError for invalid tensors.
        """

    def optim_step(self, name: str, command: OptimStep) -> dict[str, float]:
        """Apply one update with the slot's gradient, and clear the gradient. Returns metrics. A gradient that is not
        finite is cleared before ProblemError is raised.
        """

    def policy_files(self, name: str) -> Files:
        """Return the policy as the files that inference engines load."""

    def snapshot(self, name: str, progress: CheckpointProgress) -> Files:
        """Return the files of a checkpoint, which later steps do not change."""

    def heartbeat(self) -> None:
        """Check that all processes of the backend are alive. Called regularly between steps."""

    def stop(self) -> None:
        """Stop the other processes of the backend."""
