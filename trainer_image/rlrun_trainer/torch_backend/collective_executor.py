"""Runs commands on the model in all processes of the trainer, in the same order.

The first process serves requests. Before it changes or reads the model, it broadcasts the command; the other processes
wait for commands and run the same ones. Either a command succeeds on all processes, or all of them reject and undo it.
After any other failure the process exits, and the other processes exit as well; they restart together from the newest
checkpoint. Only a single-process trainer keeps running after a failed read of the model.
"""

import logging
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from pydantic import SkipValidation
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.client_command import ForwardBackward, OptimStep
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import Sample
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.service.exit import termination_log, write_termination_message
from typing_extensions import override

from rlrun_trainer.artifacts.artifact_files import Files
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.device_memory import refuses_without_memory
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.optimization import client_batch, client_step
from rlrun_trainer.optimization.column_checks import check_columns
from rlrun_trainer.optimization.learning_rate import learning_rate
from rlrun_trainer.optimization.sampling_distribution import SamplingDistribution, stop_tokens
from rlrun_trainer.optimization.step import StepPlan, step_units, train_step
from rlrun_trainer.runtime.compute_thread import Units
from rlrun_trainer.runtime.messages import MessageFormat, Refusal
from rlrun_trainer.runtime.process_group import StepAborted
from rlrun_trainer.torch_backend import checkpoint_format, full_weights

log = logging.getLogger(__name__)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Command(ABC, Generic[R_co]):
    """Task that every process performs on its model. Commands are sent between processes as JSON (see `COMMANDS`)."""

    reads_only: ClassVar[bool] = False
    """True if no process needs to undo the command after a failure: it changes nothing, or only a slot that is closed
    after a failure (`Restore`).
    """

    @abstractmethod
    def run(self, base: BaseModel) -> R_co:
        """Do this process's part. If it raises ProblemError, the model is unchanged, except the slot of `Restore`."""

    def undo(self, base: BaseModel) -> bool:
        """Undo the command on this process because another process rejected it. Returns False if that is impossible."""
        return False


@dataclass(frozen=True)
class OpenSlot(Command[AdapterSlot]):
    """Command to claim the slot that a session needs."""

    name: str
    spec: SessionSpec

    @override
    def run(self, base: BaseModel) -> AdapterSlot:
        spec = self.spec
        if spec.kind is PolicyKind.weights:
            compared = spec.kl_penalty is not None and spec.kl_penalty.enabled
            return base.open_weights(self.name, spec.model, spec.seed, compared)
        shape = AdapterShape(spec.lora.rank, spec.lora_alpha, tuple(spec.lora.target_modules), spec.lora.dropout)
        return base.open(self.name, spec.model, shape, spec.seed)

    @override
    def undo(self, base: BaseModel) -> bool:
        base.close(self.name)
        return True


@dataclass(frozen=True)
class CloseSlot(Command[None]):
    """Command to release a slot."""

    name: str

    @override
    def run(self, base: BaseModel) -> None:
        base.close(self.name)


@dataclass(frozen=True)
class Restore(Command[CheckpointProgress]):
    """Command to load a checkpoint into a newly opened slot. After ProblemError the caller must close the slot."""

    reads_only = True
    name: str
    folder: Path
    """Folder of the checkpoint, which only the first process has."""
    resume: bool = True
    """True if this run saved the checkpoint."""
    optimizer: bool = True
    """False to load only the weights."""

    @override
    def run(self, base: BaseModel) -> CheckpointProgress:
        folder = self.folder if base.world.is_leader else None
        return checkpoint_format.restore(base, base.slots[self.name], folder, self.resume, self.optimizer)


@dataclass(frozen=True)
class Train(Command[dict[str, float]]):
    """Command to take an optimizer step. The step itself sends each process its samples."""

    local_fields: ClassVar[frozenset[str]] = frozenset({"samples"})
    name: str
    plan: StepPlan
    samples: SkipValidation[Sequence[Any]] = ()
    """Batch of `Sample`, which only the first process has."""

    @override
    def run(self, base: BaseModel) -> dict[str, float]:
        return train_step(base, base.slots[self.name], self.samples, self.plan)


@dataclass(frozen=True)
class WriteModel(Command[Files]):
    """Command to collect the model's weights as files that inference engines load."""

    reads_only = True
    name: str

    @override
    def run(self, base: BaseModel) -> Files:
        return full_weights.write_model(base, base.slots[self.name], base.loader.dtype) or {}


@dataclass(frozen=True)
class Snapshot(Command[Files]):
    """Command to collect a checkpoint of the current state."""

    reads_only = True
    name: str
    progress: CheckpointProgress

    @override
    def run(self, base: BaseModel) -> Files:
        return checkpoint_format.snapshot(base, base.slots[self.name], self.progress)


@dataclass(frozen=True)
class Heartbeat(Command[None]):
    """Command that checks that all processes are alive, and lets them report a SIGTERM."""

    reads_only = True

    @override
    def run(self, base: BaseModel) -> None:
        pass


@dataclass(frozen=True)
class Stop:
    """Command to end the loop of the other processes."""


@dataclass(frozen=True)
class Answer:
    """Result of one process's part of a command."""

    leaving: bool
    """True once the process has received SIGTERM."""
    refusal: Refusal | None = None


COMMANDS: MessageFormat[Command[Any] | Stop] = MessageFormat(
    OpenSlot, CloseSlot, Restore, Train, WriteModel, Snapshot, Heartbeat, Stop
)
ANSWERS = MessageFormat(Answer)


def exit_immediately() -> None:
    """Exit this process immediately, because its state may differ from that of the other processes. These exit too, at
    their next collective operation.
    """
    logging.shutdown()
    os._exit(1)


class CollectiveExecutor:
    """`Backend` of sessions that runs each call on all processes of the trainer."""

    def __init__(
        self,
        base: BaseModel,
        exit_immediately: Callable[[], None] = exit_immediately,
        leaving: Callable[[], bool] = lambda: False,
        on_leave: Callable[[], None] = lambda: None,
    ) -> None:
        """`leaving` returns True after SIGTERM to this process; `on_leave` is called once any process reports it."""
        self.base = base
        self._world = base.world
        self._exit_immediately = exit_immediately
        self._leaving = leaving
        self._on_leave = on_leave

    def run_on_all(self, command: Command[R]) -> R:
        """Run the command on every process and return the result of this process. Raises ProblemError."""
        try:
            self._world.broadcast(command, COMMANDS)
        except Exception:
            log.exception("Could not send %s to the other processes", _name(command))
            self._exit_immediately()
            raise
        return self._run_together(command)

    @property
    def warnings(self) -> Sequence[Problem]:
        """Warnings about the model."""
        return self.base.warnings

    def open_slot(self, name: str, spec: SessionSpec) -> Sequence[Problem]:
        """Claim the slot that the session needs. Returns warnings about its adapter. Raises ProblemError."""
        return self.run_on_all(OpenSlot(name, spec)).warnings

    def close_slot(self, name: str) -> None:
        """Release a slot."""
        self.run_on_all(CloseSlot(name))

    def restore(self, name: str, folder: Path, resume: bool, optimizer: bool = True) -> CheckpointProgress:
        """Load a checkpoint into a newly opened slot. Raises ProblemError."""
        needed = f"The checkpoint does not fit into the trainer's memory. {self.base.loader.memory_advice}"
        with refuses_without_memory(needed):
            return self.run_on_all(Restore(name, folder, resume, optimizer))

    def train(self, name: str, spec: SessionSpec, samples: Sequence[Sample], version: int) -> Units[dict[str, float]]:
        """Take an optimizer step with the run's settings. If there are several processes, the step is one unit.
        Raises ProblemError.
        """
        check_columns(samples, self.base.vocab_size)
        ends = stop_tokens(self.base.model) if spec.sampling.min_tokens else ()
        plan = StepPlan(
            learning_rate=learning_rate(spec, version, self.base.slots[name].updates),
            micro_batch_tokens=spec.micro_batch_tokens,
            max_grad_norm=spec.max_grad_norm,
            weight_decay=spec.weight_decay,
            version=version,
            distribution=SamplingDistribution(spec.sampling, ends),
            loss=spec.loss,
            kl_penalty=spec.kl_penalty,
            micro_batches=spec.gradient_accumulation_steps,
        )
        if self._world.size > 1:
            return self.run_on_all(Train(name, plan, samples))
        try:
            return (yield from step_units(self.base, self.base.slots[name], samples, plan))
        except ProblemError:
            raise
        except Exception as error:
            self._exit_after(error, "Train")
            raise

    def forward_backward(
        self, name: str, spec: SessionSpec, command: ForwardBackward, buffers: memoryview
    ) -> Units[tuple[dict[str, float], list[bytes]]]:
        """Add the gradient of a client's loss to the slot's gradient. Returns metrics, and the log-probabilities of
        each datum in float32. Raises ProblemError with the slot unchanged.
        """
        self._check_alone()
        batch = client_batch.decode(command, buffers, self.base.vocab_size, spec.seq_len)
        slot = self.base.slots[name]
        try:
            return (yield from client_step.forward_backward_units(self.base, slot, batch, spec.micro_batch_tokens))
        except torch.AcceleratorError as error:
            # The slot is unchanged, but no later call to the device can succeed.
            self._exit_after(error, "ForwardBackward")
            raise

    def optim_step(self, name: str, command: OptimStep) -> dict[str, float]:
        """Update the slot's weights with its gradient, and clear the gradient. Returns metrics. Raises ProblemError
        with the weights unchanged.
        """
        self._check_alone()
        try:
            return client_step.optim_step(self.base, self.base.slots[name], command)
        except ProblemError:
            raise
        except Exception as error:
            self._exit_after(error, "OptimStep")
            raise

    def snapshot(self, name: str, progress: CheckpointProgress) -> Files:
        """Return the files of a checkpoint of the current state. Raises ProblemError."""
        return self.run_on_all(Snapshot(name, progress))

    def heartbeat(self) -> None:
        """Let the other processes report a SIGTERM. This process exits if one of them has exited."""
        self.run_on_all(Heartbeat())

    def policy_files(self, name: str) -> Files:
        """Return the policy as the files that inference engines load. Raises ProblemError."""
        slot = self.base.slots[name]
        if slot.shape is None:
            return self.run_on_all(WriteModel(name))
        try:
            # Every process has complete adapters, so the other processes need not take part.
            return slot.files(self.base.loader.dtype)
        except torch.AcceleratorError as error:
            self._exit_after(error, "WriteAdapter")
            raise

    def stop(self) -> None:
        """End the loop of the other processes."""
        if self._world.size > 1:
            self._world.broadcast(Stop(), COMMANDS)

    def follow(self) -> None:
        """Run commands of the first process until it stops the loop."""
        while not isinstance(command := self._receive(), Stop):
            try:
                self._run_together(command)
            except ProblemError as error:
                log.info("%s: %s", _name(command), error)

    def _check_alone(self) -> None:
        if self._world.size > 1:
            raise ProblemError.of(
                UNPROCESSABLE,
                Reason.COMMAND_INVALID,
                f"This trainer has {self._world.size} processes, but client commands need a trainer with one. Use an "
                "RLModel whose trainer can be shared.",
            )

    def _receive(self) -> Command[Any] | Stop:
        return self._world.broadcast(None, COMMANDS)

    def _run_together(self, command: Command[R]) -> R:
        results: list[R] = []
        refusal: ProblemError | None = None
        try:
            results.append(command.run(self.base))
        except ProblemError as error:
            refusal = error
        except Exception as error:
            # Without the device, the next run's work would fail, too, and that run would be charged for the crash.
            is_usable = not isinstance(error, torch.AcceleratorError)
            if self._world.size == 1 and command.reads_only and is_usable:
                raise
            self._exit_after(error, _name(command))
            raise
        try:
            own = Answer(self._leaving(), Refusal.of(refusal) if refusal is not None else None)
            answers = self._world.all_gather(own, ANSWERS)
        except Exception:
            log.exception("Another process exited during %s; exiting this process", _name(command))
            self._exit_immediately()
            raise
        if any(answer.leaving for answer in answers):
            self._on_leave()
        first = next((answer.refusal.error for answer in answers if answer.refusal is not None), None)
        if first is None:
            return results[0]
        if refusal is None and not (command.reads_only or command.undo(self.base)):
            log.error(
                "Another process rejected %s, but this one did not; exiting this process: %s", _name(command), first
            )
            self._exit_immediately()
        raise refusal or first

    def _exit_after(self, error: Exception, command: str) -> None:
        log.error("%s failed; exiting this process:\n%s", command, "".join(traceback.format_exception(error)))
        # Without a message, Kubernetes shows the end of the log.
        if isinstance(error, StepAborted) and error.problem is not None:
            write_termination_message(error.problem, termination_log())
        self._exit_immediately()


def _name(command: Command[Any]) -> str:
    return type(command).__name__
