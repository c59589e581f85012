"""Commands of clients between those of other slots give the bits of each slot alone, also across a checkpoint."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlrun.service.errors import ProblemError
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.optimization.step import StepPlan, step_units
from rlrun_trainer.runtime.compute_thread import finish
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor

from tests.support import tiny_model
from tests.support.client_datums import command, optim_step, random_datums

CLIENTS = 3
LOSSES = ("cross_entropy", "ppo", "gspo")
SPEC = tiny_model.spec("s3://b/x", micro_batch_tokens=40, lora={"dropout": 0.1})
PROGRESS = CheckpointProgress(1, "uid", {})


def fail() -> None:
    raise AssertionError("the process exits")


def commands(executor: CollectiveExecutor, client: int, rounds: range, results: list[Any]) -> Iterator[None]:
    """Run the client's commands, with a pause after each unit and each command."""
    name = f"client{client}"
    for made in rounds:
        for part in range(2):
            loss = LOSSES[(client + part) % len(LOSSES)]
            targets = 3 if loss == "cross_entropy" and made else None
            seed = 100 * client + 10 * made + part
            datums = random_datums(loss, 7 + client, tiny_model.VOCABULARY, seed, targets)
            for only in (True, False):
                sent = command(loss, datums, forward_only=only)
                results.append((yield from executor.forward_backward(name, SPEC, *sent)))
                yield
        update = optim_step(learning_rate=0.02 / (client + made + 1), grad_clip_norm=0.5 * client, weight_decay=0.01)
        results.append(executor.optim_step(name, update))
        yield


def run(base: BaseModel) -> Iterator[None]:
    """Steps of a run whose training loop is not a client's."""
    slot = base.open("run", tiny_model.MODEL, tiny_model.SHAPE, 9)
    plan = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=0.5)
    for made in range(3):
        yield from step_units(base, slot, tiny_model.samples(10, seed=made), plan)
        yield


def files(executor: CollectiveExecutor, client: int) -> dict[str, bytes]:
    made = executor.snapshot(f"client{client}", PROGRESS)
    assert isinstance(made, dict)
    return made


def executor_of(base: BaseModel, *clients: int) -> CollectiveExecutor:
    executor = CollectiveExecutor(base, fail)
    for client in clients:
        executor.open_slot(f"client{client}", SPEC.model_copy(update={"seed": client}))
    return executor


def drain(*works: Iterator[None], seed: int = 7) -> int:
    """Do the units of all works in a random order. Returns their number."""
    left, draw, units = list(works), random.Random(seed), 0
    while left:
        work = draw.choice(left)
        try:
            next(work)
            units += 1
        except StopIteration:
            left.remove(work)
    return units


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_slots_change_no_bit(model_dir: Path, dtype: str) -> None:
    base = tiny_model.load(model_dir, slots=CLIENTS + 1, dtype=dtype)
    shared = executor_of(base, *range(CLIENTS))
    results: list[list[Any]] = [[] for _ in range(CLIENTS)]
    works = [commands(shared, client, range(2), results[client]) for client in range(CLIENTS)]
    assert drain(run(base), *works) > 40
    for client in range(CLIENTS):
        alone = executor_of(tiny_model.load(model_dir, dtype=dtype), client)
        expected: list[Any] = []
        drain(commands(alone, client, range(2), expected))
        assert results[client] == expected
        assert files(shared, client) == files(alone, client)


def test_a_checkpoint_continues_to_the_bit_with_the_optimizer_only(model_dir: Path, tmp_path: Path) -> None:
    whole = executor_of(tiny_model.load(model_dir), 1)
    results: dict[str, list[Any]] = {"whole": [], "optimizer": [], "weights": []}
    drain(commands(whole, 1, range(2), []))
    for name, data in files(whole, 1).items():
        (tmp_path / name).write_bytes(data)
    drain(commands(whole, 1, range(2, 4), results["whole"]))
    for name in ("optimizer", "weights"):
        executor = executor_of(tiny_model.load(model_dir), 1)
        executor.restore("client1", tmp_path, resume=False)
        if name == "weights":
            executor.base.slots["client1"].optimizer.state.clear()
        drain(commands(executor, 1, range(2, 4), results[name]))
        assert (files(executor, 1) == files(whole, 1)) == (name == "optimizer")
    assert results["optimizer"] == results["whole"]
    assert results["weights"] != results["whole"]


def test_a_run_that_resumes_between_two_commands_has_its_gradient(model_dir: Path, tmp_path: Path) -> None:
    whole = executor_of(tiny_model.load(model_dir), 1)
    finish(whole.forward_backward("client1", SPEC, *command("ppo", random_datums("ppo", 5, tiny_model.VOCABULARY))))
    for name, data in files(whole, 1).items():
        (tmp_path / name).write_bytes(data)
    whole.optim_step("client1", optim_step())
    for resume in (True, False):
        executor = executor_of(tiny_model.load(model_dir), 1)
        executor.restore("client1", tmp_path, resume)
        executor.optim_step("client1", optim_step())
        # A model that is loaded from a saved state begins without a gradient.
        assert (files(executor, 1) == files(whole, 1)) == resume


def test_no_damaged_command_changes_a_slot_when_it_is_refused(model_dir: Path) -> None:
    executor = executor_of(tiny_model.load(model_dir), 1)
    before, draw, refused = files(executor, 1), random.Random(3), 0
    for number in range(60):
        loss = LOSSES[number % len(LOSSES)]
        header, buffers = command(loss, random_datums(loss, 3, tiny_model.VOCABULARY, number))
        damaged = bytearray(buffers)
        for _ in range(2):
            damaged[draw.randrange(len(damaged))] = draw.choice([0, 127, 255, draw.randrange(256)])
        try:
            finish(executor.forward_backward("client1", SPEC, header, memoryview(damaged)))
        except ProblemError:
            refused += 1
            assert files(executor, 1) == before
        before = files(executor, 1)
    assert 10 < refused < 55
