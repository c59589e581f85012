"""What the trainer does with its model, done by all of its processes in the same order.

The first process listens and decides; before it does anything with the model it tells the others, which do nothing but
wait for such a command and do the same. A command either succeeds on all, or is refused by all and undone; anything
else ends the process, and with it the others: they start again together, from the newest checkpoint.
"""

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlrun.schema.wire import PolicyKind, Sample, SessionSpec
from rlrun.service.errors import ProblemError

from rlrun_trainer import checkpoint, weights
from rlrun_trainer.adapters import AdapterShape
from rlrun_trainer.files import Files
from rlrun_trainer.slots import BaseModel, Slot
from rlrun_trainer.step import StepPlan, train_step

log = logging.getLogger(__name__)

STOP = "stop"
UNCHANGING = {"_restore", "_files", "_snapshot"}
"""Commands that one process may refuse alone: the first one reads or writes files, and nobody's weights are other than
they were (a slot that was to be restored is closed).
"""
BEAT_SECONDS = 5.0
"""Between two signs of life. The others wait for a command no longer than `distributed.PATIENCE`, and have no other way
to say that their pod is being taken away: the first one needs the time that is left for a last checkpoint.
"""


def give_up() -> None:
    """Ends this process at once: the others notice, and nobody trains on in a state that differs."""
    logging.shutdown()
    os._exit(1)


class Crew:
    """All processes of the trainer as one. Blocks; belongs on the compute thread."""

    def __init__(
        self,
        base: BaseModel,
        give_up: Callable[[], None] = give_up,
        leaving: Callable[[], bool] = lambda: False,
        on_leave: Callable[[], None] = lambda: None,
    ) -> None:
        """`leaving`: whether this process was told to stop. All hear of it with the next command, by `on_leave`."""
        self.base = base
        self._world = base.world
        self._give_up = give_up
        self._leaving = leaving
        self._on_leave = on_leave

    # --- commands -------------------------------------------------------------------------------------------------

    def open(self, name: str, spec: SessionSpec) -> Slot:
        """Claims a slot as the run needs it. Raises ProblemError."""
        slot: Slot = self._all("_open", name, spec)
        return slot

    def close(self, name: str) -> None:
        """Gives the slot back."""
        self._all("_close", name)

    def restore(self, name: str, folder: Path) -> checkpoint.Progress:
        """Puts the checkpoint in the folder into a freshly opened slot. After ProblemError the slot is to be closed."""
        progress: checkpoint.Progress = self._all("_restore", name, folder)
        return progress

    def train(self, name: str, samples: Sequence[Sample], plan: StepPlan) -> dict[str, float]:
        """One optimizer step. Raises ProblemError with the slot as it was, on all."""
        metrics: dict[str, float] = self._all("_train", name, list(samples), plan)
        return metrics

    def files(self, name: str) -> Files:
        """The policy as engines load it."""
        slot = self.base.slots[name]
        # Adapters are whole on every process: nobody has to be asked.
        files: Files = slot.files() if slot.shape is not None else self._all("_files", name)
        return files

    def snapshot(self, name: str, progress: checkpoint.Progress) -> Files:
        """A checkpoint of now."""
        files: Files = self._all("_snapshot", name, progress)
        return files

    def beat(self) -> None:
        """Shows that all processes are there."""
        self._all("_beat")

    def stop(self) -> None:
        """Lets the others go."""
        if self._world.size > 1:
            self._world.tell((STOP, ()))

    def follow(self) -> None:
        """What a process does that does not lead: commands, until it is told to stop."""
        while True:
            command, arguments = self._world.tell(("", ()))
            if command == STOP:
                return
            try:
                self._together(command, arguments)
            except ProblemError as error:
                log.info("%s: %s", command, error)

    # --- on every process -----------------------------------------------------------------------------------------

    def _open(self, name: str, spec: SessionSpec) -> Slot:
        if spec.kind is PolicyKind.weights:
            compared = spec.kl_penalty is not None and spec.kl_penalty.enabled
            return self.base.open_weights(name, spec.model, spec.seed, compared)
        shape = AdapterShape(spec.lora_rank, spec.lora_alpha, tuple(spec.target_modules), spec.lora_dropout)
        return self.base.open(name, spec.model, shape, spec.seed)

    def _close(self, name: str) -> None:
        self.base.close(name)

    def _restore(self, name: str, folder: Path) -> checkpoint.Progress:
        return checkpoint.restore(self.base, self.base.slots[name], folder if self._world.leads else None)

    def _train(self, name: str, samples: list[Sample], plan: StepPlan) -> dict[str, float]:
        return train_step(self.base, self.base.slots[name], samples, plan)

    def _beat(self) -> None:
        pass

    def _files(self, name: str) -> Files:
        return weights.write_model(self.base, self.base.slots[name], self.base.loader.dtype) or {}

    def _snapshot(self, name: str, progress: checkpoint.Progress) -> Files:
        return checkpoint.snapshot(self.base, self.base.slots[name], progress)

    # --- together -------------------------------------------------------------------------------------------------

    def _all(self, command: str, *arguments: Any) -> Any:
        if self._world.size == 1:
            return getattr(self, command)(*arguments)
        try:
            self._world.tell((command, arguments))
        except Exception:
            log.exception("the other processes do not hear %s", command)
            self._give_up()
            raise
        return self._together(command, arguments)

    def _together(self, command: str, arguments: tuple[Any, ...]) -> Any:
        result: Any = None
        refusal: ProblemError | None = None
        try:
            result = getattr(self, command)(*arguments)
        except ProblemError as error:
            refusal = error
        except Exception:
            log.error("%s failed, and this process ends:\n%s", command, traceback.format_exc())
            self._give_up()
            raise
        try:
            answers = self._world.gather((refusal, self._leaving()))
        except Exception:
            log.exception("another process is gone during %s, and this one ends", command)
            self._give_up()
            raise
        if any(leaving for _, leaving in answers):
            self._on_leave()
        first = next((error for error, _ in answers if error is not None), None)
        if first is None:
            return result
        if refusal is None and command == "_open":
            self.base.close(arguments[0])
        elif refusal is None and command not in UNCHANGING:
            log.error("%s was refused by another process only, and this one ends: %s", command, first)
            self._give_up()
        raise refusal or first
