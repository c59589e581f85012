"""Commands succeed on all processes of a trainer or on none."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.api.run_sections.training import KlPenalty
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress, StepOutcome
from rlrun_trainer.model import base_model
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.optimization import client_step
from rlrun_trainer.optimization.sampling_distribution import SamplingDistribution
from rlrun_trainer.optimization.step import StepPlan
from rlrun_trainer.runtime.compute_thread import finish
from rlrun_trainer.runtime.messages import MessageFormat, Refusal
from rlrun_trainer.runtime.process_group import ProcessGroup
from rlrun_trainer.torch_backend import checkpoint_format
from rlrun_trainer.torch_backend.collective_executor import (
    ANSWERS,
    COMMANDS,
    Answer,
    CloseSlot,
    CollectiveExecutor,
    Command,
    Heartbeat,
    OpenSlot,
    Restore,
    Snapshot,
    Stop,
    Train,
    WriteModel,
)

from tests.support import tiny_model
from tests.support.client_datums import command, optim_step, random_datums

NO_MEMORY = ProblemError.of(507, "TrainerOutOfMemory", "the other process has no memory")
BENT = SamplingDistribution(Sampling(top_p=0.9, min_tokens=2), (1, 2))
PLAN = StepPlan(learning_rate=1e-3, micro_batch_tokens=64, max_grad_norm=1.0)
EXAMPLES = [
    OpenSlot("run", tiny_model.spec("s3://b/x")),
    CloseSlot("run"),
    Restore("run", Path("/checkpoint")),
    Train("run", PLAN),
    Train("run", replace(PLAN, distribution=BENT, kl_penalty=KlPenalty(beta=0.1))),
    WriteModel("run"),
    Snapshot("run", CheckpointProgress(7, "uid", {"seen": [1, 2.5]}, 6, StepOutcome({"loss/mean": 0.1}, "b"))),
    Heartbeat(),
    Stop(),
]


@dataclass(frozen=True)
class TwoProcesses(ProcessGroup):
    """This process and one that answers as the test says."""

    size: int = 2
    refusal: ProblemError | None = None
    leaving: bool = False
    sent: list[Any] = field(default_factory=list)
    to_receive: list[Any] = field(default_factory=list)

    def broadcast(self, value: Any, message_format: MessageFormat[Any]) -> Any:
        if self.is_leader:
            self.sent.append(value)
            return value
        return self.to_receive.pop(0)

    def all_gather(self, value: Any, message_format: MessageFormat[Any]) -> list[Any]:
        return [value, Answer(self.leaving, Refusal.of(self.refusal) if self.refusal is not None else None)]


@dataclass(frozen=True)
class Count(Command[int]):
    """A command that changes the model (here a list)."""

    error: Exception | None = None

    def run(self, base: Any) -> int:
        if self.error is not None:
            raise self.error
        base.changes.append(1)
        return len(base.changes)


@dataclass(frozen=True)
class Read(Count):
    reads_only = True


@dataclass(frozen=True)
class Undoable(Count):
    def undo(self, base: Any) -> bool:
        base.changes.pop()
        return True


class Ended(Exception):
    pass


def end() -> None:
    raise Ended


def executor(world: ProcessGroup, **more: Any) -> CollectiveExecutor:
    base: Any = SimpleNamespace(world=world, changes=[])
    return CollectiveExecutor(base, end, **more)


@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: type(command).__name__)
def test_every_command_can_be_sent_to_another_process(command: Any) -> None:
    assert COMMANDS.decode(COMMANDS.encode(command)) == command


@pytest.mark.parametrize("refusal", [None, Refusal.of(NO_MEMORY)])
def test_every_answer_can_be_sent_to_another_process(refusal: Refusal | None) -> None:
    answer = Answer(True, refusal)
    assert ANSWERS.decode(ANSWERS.encode(answer)) == answer


def test_every_class_of_commands_is_sent_by_the_test() -> None:
    assert {type(command) for command in EXAMPLES if isinstance(command, Command)} == {
        each for each in Command.__subclasses__() if each.__module__ == Command.__module__
    }


def test_only_commands_that_keep_the_weights_are_marked_reads_only() -> None:
    may = {type(command) for command in EXAMPLES if isinstance(command, Command) and command.reads_only}
    assert may == {Restore, WriteModel, Snapshot, Heartbeat}


def test_one_process_runs_a_command_without_sending_it() -> None:
    assert executor(ProcessGroup()).run_on_all(Count()) == 1


def test_a_command_is_sent_and_run() -> None:
    world = TwoProcesses()
    assert executor(world).run_on_all(Count()) == 1
    assert world.sent == [Count()]


def test_a_refusal_of_another_process_only_ends_this_one_after_a_change() -> None:
    with pytest.raises(Ended):
        executor(TwoProcesses(refusal=NO_MEMORY)).run_on_all(Count())


@pytest.mark.parametrize(("command", "changes"), [(Read(), [1]), (Undoable(), [])])
def test_a_refusal_of_another_process_only_is_passed_on_when_nothing_stays_changed(
    command: Command[int], changes: list[int]
) -> None:
    crew = executor(TwoProcesses(refusal=NO_MEMORY))
    with pytest.raises(ProblemError, match="the other process has no memory"):
        crew.run_on_all(command)
    assert crew.base.changes == changes  # type: ignore[attr-defined]


def test_a_refusal_by_all_processes_is_raised() -> None:
    with pytest.raises(ProblemError, match="this one has none"):
        executor(TwoProcesses(refusal=NO_MEMORY)).run_on_all(
            Count(ProblemError.of(507, "TrainerOutOfMemory", "this one has none"))
        )


@pytest.mark.parametrize("world", [TwoProcesses(), ProcessGroup()], ids=["two", "one"])
def test_any_other_failure_ends_the_process(world: ProcessGroup) -> None:
    with pytest.raises(Ended):
        executor(world).run_on_all(Count(ValueError("a bug")))


def test_a_process_that_ends_for_lack_of_memory_in_the_update_says_so(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setenv("RLRUN_TERMINATION_LOG", str(log))
    slot = base.open("run", tiny_model.MODEL, tiny_model.SHAPE, 1)

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(slot.optimizer, "step", fail)
    with pytest.raises(Ended):
        CollectiveExecutor(base, end).run_on_all(Train("run", PLAN, tiny_model.samples(2, 0)))
    problem = Problem.model_validate_json(log.read_text())
    assert problem.reason == "TrainerOutOfMemory"
    assert "microBatchTokens" in problem.message


def test_an_adapter_without_memory_is_refused_and_the_other_runs_stay(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = CollectiveExecutor(base, end)
    crew.open_slot("first", tiny_model.spec("s3://b/x"))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as full:
        full.setattr(base_model, "_initial_tensors", fail)
        with pytest.raises(ProblemError, match=r"rank \d+ for \d+ layers .* Lower lora.rank") as refused:
            crew.open_slot("second", tiny_model.spec("s3://b/y"))
    assert (refused.value.status, refused.value.problem.reason) == (507, "TrainerOutOfMemory")
    assert list(base.slots) == ["first"]
    crew.open_slot("second", tiny_model.spec("s3://b/y"))


def test_a_checkpoint_without_memory_is_refused(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(checkpoint_format, "restore", fail)
    crew = CollectiveExecutor(base, end)
    crew.open_slot("run", tiny_model.spec("s3://b/x"))
    with pytest.raises(ProblemError, match="The checkpoint does not fit into the trainer's memory") as refused:
        crew.restore("run", Path("/checkpoint"), True)
    assert refused.value.status == 507


def test_commands_of_clients_need_a_trainer_of_one_process() -> None:
    crew = executor(TwoProcesses())
    sent = command("ppo", random_datums("ppo", 1, tiny_model.VOCABULARY))
    for call in (
        lambda: finish(crew.forward_backward("run", tiny_model.spec("s3://b/x"), *sent)),
        lambda: crew.optim_step("run", optim_step()),
    ):
        with pytest.raises(ProblemError, match="has 2 processes, but client commands need a trainer with one"):
            call()


def test_a_client_whose_command_fails_ends_no_process(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    crew = CollectiveExecutor(base, end)
    crew.open_slot("run", tiny_model.spec("s3://b/x"))
    header, buffers = command("ppo", random_datums("ppo", 3, tiny_model.VOCABULARY))

    def forward_backward() -> None:
        finish(crew.forward_backward("run", tiny_model.spec("s3://b/x"), header, buffers))

    with pytest.raises(ProblemError, match="announces"):
        finish(crew.forward_backward("run", tiny_model.spec("s3://b/x"), header, buffers[1:]))
    for error, raised in ((ValueError("a bug"), ValueError), (torch.AcceleratorError("the device is lost"), Ended)):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as broken:
            broken.setattr(client_step, "_compute", fail)
            with pytest.raises(raised):
                forward_backward()
    forward_backward()
    with pytest.raises(ProblemError, match=r"adam_params.eps"):
        crew.optim_step("run", optim_step(eps=0))
    monkeypatch.setattr(base.slots["run"].optimizer, "step", fail)
    with pytest.raises(Ended):
        crew.optim_step("run", optim_step())


def test_a_failure_to_read_the_model_ends_no_process_that_is_alone() -> None:
    with pytest.raises(ValueError, match="a bug"):
        executor(ProcessGroup()).run_on_all(Read(ValueError("a bug")))


@pytest.mark.parametrize(
    "save",
    [lambda crew: crew.policy_files("run"), lambda crew: crew.snapshot("run", CheckpointProgress(0, "uid", {}))],
    ids=["policy", "checkpoint"],
)
def test_a_save_without_a_device_ends_the_process_before_another_run_computes(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, save: Callable[[CollectiveExecutor], object]
) -> None:
    crew = CollectiveExecutor(base, end)
    crew.open_slot("run", tiny_model.spec("s3://b/x"))

    def fail(*_: object) -> None:
        raise torch.AcceleratorError("the device is lost")

    monkeypatch.setattr(base_model.AdapterSlot, "files", fail)
    with pytest.raises(Ended):
        save(crew)


def test_a_process_that_received_sigterm_is_noticed_with_the_next_command() -> None:
    noticed: list[bool] = []
    crew = executor(TwoProcesses(leaving=True), on_leave=lambda: noticed.append(True))
    crew.run_on_all(Heartbeat())
    assert noticed == [True]


def test_the_other_processes_run_commands_until_they_are_stopped() -> None:
    refused = Count(ProblemError.of(422, "StepNotFinite", "no number"))
    crew = executor(TwoProcesses(rank=1, to_receive=[Count(), refused, Count(), Stop(), Count()]))
    crew.follow()
    assert len(crew.base.changes) == 2  # type: ignore[attr-defined]


def test_stop_is_sent_to_the_other_processes() -> None:
    world = TwoProcesses()
    executor(world).stop()
    assert world.sent == [Stop()]
