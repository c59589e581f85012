"""Steps of several slots whose units alternate are those of each slot alone, bit for bit."""

import gc
import itertools
import random
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rlrun.api.run_sections.training import KlPenalty
from rlrun.protocol.train_batch import Sample
from rlrun.service.errors import ProblemError
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.optimization import objective, step
from rlrun_trainer.optimization.packing import MicroBatch
from rlrun_trainer.optimization.step import StepPlan, step_units
from rlrun_trainer.runtime.compute_thread import Units, finish
from rlrun_trainer.torch_backend.checkpoint_format import snapshot

from tests.support import tiny_model

PLAN = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=0.5)
PLANS = (
    PLAN,
    StepPlan(learning_rate=3e-2, micro_batch_tokens=40, max_grad_norm=9.0, weight_decay=0.1),
    StepPlan(learning_rate=1e-3, micro_batch_tokens=90, max_grad_norm=0.1, kl_penalty=KlPenalty(enabled=True)),
)
"""Plan of each slot. They differ in each setting of the optimizer."""
RANKS = (4, 8, 2)
STEPS = 3


def opened(base: BaseModel, number: int, dropout: float) -> AdapterSlot:
    targets = (("q_proj", "down_proj"), ("all-linear",), ("v_proj", "lm_head"))[number]
    return base.open(f"run{number}", tiny_model.MODEL, AdapterShape(RANKS[number], 8.0, targets, dropout), number)


def batch(number: int, made: int) -> list[Sample]:
    return tiny_model.samples(10 + 3 * number, seed=10 * made + number)


def state(base: BaseModel, slot: AdapterSlot) -> dict[str, bytes]:
    files = snapshot(base, slot, CheckpointProgress(STEPS, slot.name, {}))
    assert isinstance(files, dict)
    return files


def alternate(works: Sequence[Units[dict[str, float]]], choose: Callable[[Sequence[int]], int]) -> int:
    """Do the units of all works in the chosen order. Returns how often the work changed."""
    left, order = dict(enumerate(works)), []
    while left:
        number = choose(list(left))
        order.append(number)
        try:
            next(left[number])
        except StopIteration:
            del left[number]
    return sum(one != other for one, other in itertools.pairwise(order))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_alternating_units_change_no_bit(model_dir: Path, dtype: str, dropout: float) -> None:
    shared = tiny_model.load(model_dir, slots=3, dtype=dtype)
    slots = [opened(shared, number, dropout) for number in range(3)]
    draw = random.Random(7)
    for made in range(STEPS):
        works = [step_units(shared, slot, batch(n, made), PLANS[n]) for n, slot in enumerate(slots)]
        assert alternate(works, draw.choice) >= 4
    for number, slot in enumerate(slots):
        base = tiny_model.load(model_dir, slots=1, dtype=dtype)
        alone = opened(base, number, dropout)
        for made in range(STEPS):
            finish(step_units(base, alone, batch(number, made), PLANS[number]))
        assert state(shared, slot) == state(base, alone), number


def test_a_neighbour_that_adds_padding_would_be_noticed(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_model.load(model_dir)
    alone = opened(base, 0, 0.1)
    finish(step_units(base, alone, batch(0, 0), PLAN))
    correct = MicroBatch.of

    def padded(rows: Sequence[Sequence[Sample]], *arguments: object) -> MicroBatch:
        longest = max(rows, key=lambda row: sum(len(sample.token_ids) for sample in row))
        # The sample has no weight in the loss, but takes part in the pass, whose random numbers it shares.
        other = Sample(list(range(5)), [False] * 5, [0.0] * 5, 0.0, 0)
        return correct([[*row, other] if row is longest else row for row in rows], *arguments)

    monkeypatch.setattr(step.MicroBatch, "of", staticmethod(padded))
    other = tiny_model.load(model_dir)
    slot = opened(other, 0, 0.1)
    finish(step_units(other, slot, batch(0, 0), PLAN))
    assert state(base, alone) != state(other, slot)


def test_a_refused_step_between_others_leaves_its_slot_as_it_was(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, slots=3)
    slots = [opened(base, number, 0.1) for number in range(3)]
    for number, slot in enumerate(slots):
        finish(step_units(base, slot, batch(number, 0), PLANS[number]))
    before = state(base, slots[0])
    bad = batch(0, 1)
    bad[-1].advantage = float("nan")
    refused = step_units(base, slots[0], bad, PLAN)
    good = step_units(base, slots[1], batch(1, 1), PLANS[1])
    next(refused)
    next(good)
    with pytest.raises(ProblemError, match="is not finite"):
        finish(refused)
    finish(good)
    assert state(base, slots[0]) == before
    assert all(parameter.grad is None for parameter in slots[0].parameters.values())


def test_an_abandoned_step_leaves_its_slot_as_it_was(model_dir: Path) -> None:
    base = tiny_model.load(model_dir)
    slot = opened(base, 0, 0.1)
    before = state(base, slot)
    work = step_units(base, slot, batch(0, 0), PLAN)
    next(work)
    work.close()
    assert state(base, slot) == before
    assert all(parameter.grad is None for parameter in slot.parameters.values())


def test_pauses_between_units_are_not_part_of_the_throughput(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(step.time, "perf_counter", lambda: seconds[0])
    base = tiny_model.load(model_dir)
    work = step_units(base, opened(base, 0, 0.0), batch(0, 0), PLAN)
    metrics: dict[str, float] = {}
    backward = step.backward

    def timed(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        seconds[0] += 2.0
        return backward(*arguments)

    monkeypatch.setattr(step, "backward", timed)
    try:
        while True:
            next(work)
            seconds[0] += 1000.0
    except StopIteration as end:
        metrics = end.value
    assert metrics["time/forward_backward"] == 2.0 * metrics["batch/micro_batches"]
    assert metrics["perf/throughput"] == metrics["batch/tokens"] / metrics["time/forward_backward"]


def test_a_refusal_for_lack_of_memory_holds_no_activations(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_model.load(model_dir)
    slot = opened(base, 0, 0.0)
    kept: list[weakref.ref[torch.Tensor]] = []
    hidden_states = objective._hidden_states

    def watched(*arguments: Any) -> torch.Tensor:
        made = hidden_states(*arguments)
        kept.append(weakref.ref(made))
        return made

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(objective, "_hidden_states", watched)
    monkeypatch.setattr(objective, "_backward_to", full)
    gc.disable()
    try:
        with pytest.raises(ProblemError, match="does not fit"):
            finish(step_units(base, slot, batch(0, 0), PLAN))
        assert [one() for one in kept] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("recompute", ["on", "off"])
def test_an_adapter_on_the_head_alone_is_trained(model_dir: Path, recompute: str) -> None:
    base = tiny_model.load(model_dir, gradient_checkpointing=recompute)
    slot = base.open("head", tiny_model.MODEL, AdapterShape(4, 8.0, ("lm_head",)), 0)
    finish(step_units(base, slot, batch(0, 0), PLAN))
    assert any(parameter.any() for name, parameter in slot.parameters.items() if ".lora_B." in name)
