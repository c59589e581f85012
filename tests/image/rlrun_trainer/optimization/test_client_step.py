"""The gradient of a client's command is that of its datums one by one, and an update is that of torch's AdamW."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlrun.service.errors import ProblemError
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.optimization import client_step
from rlrun_trainer.optimization.client_batch import ClientBatch, decode
from rlrun_trainer.optimization.client_loss import LOSSES, LossInputs
from rlrun_trainer.optimization.client_step import forward_backward_units, optim_step
from rlrun_trainer.runtime.compute_thread import finish
from rlrun_trainer.runtime.process_group import StepAborted

from tests.support import tiny_model
from tests.support.client_datums import Datum, Sparse, command, random_datums
from tests.support.client_datums import optim_step as update

BUDGET = 64


def opened(base: BaseModel, name: str = "a", dropout: float = 0.0, head: bool = False) -> AdapterSlot:
    targets = (*tiny_model.TARGETS, "lm_head") if head else tiny_model.TARGETS
    slot = base.open(name, tiny_model.MODEL, AdapterShape(4, 8.0, targets, dropout), 1)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return slot


def batch_of(loss: str, datums: Sequence[Datum], **more: Any) -> ClientBatch:
    return decode(*command(loss, datums, **more), tiny_model.VOCABULARY, 64)


def run(
    base: BaseModel, slot: AdapterSlot, loss: str, datums: Sequence[Datum], budget: int = BUDGET, **more: Any
) -> tuple[dict[str, float], list[np.ndarray]]:
    metrics, logprobs = finish(forward_backward_units(base, slot, batch_of(loss, datums, **more), budget))
    return metrics, [np.frombuffer(part, np.float32) for part in logprobs]


def gradient(slot: AdapterSlot) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in slot.parameters.values() if parameter.grad is not None]


def reference(
    base: BaseModel, slot: AdapterSlot, loss: str, batch: ClientBatch
) -> tuple[float, list[torch.Tensor], list[np.ndarray]]:
    """Loss, gradient and log-probabilities by the model's ordinary forward pass, for each datum alone."""
    base.activate(slot)
    total = torch.zeros((), dtype=torch.float64)
    logprobs = []
    for datum in batch.datums:
        ids = torch.tensor([datum.tokens.tolist()], device=base.device)
        targets = torch.from_numpy(datum.targets.dense(np.int64)).to(base.device)
        logp = torch.log_softmax(base.model(input_ids=ids, use_cache=False).logits[0].double(), -1)
        found = logp.gather(-1, targets.reshape(len(targets), -1))
        logprobs.append(found.detach().float().cpu().numpy().flatten())
        inputs = {name: torch.from_numpy(t.dense(np.float64)).to(base.device) for name, t in datum.inputs.items()}
        if targets.ndim > 1:
            total = total - (inputs["weights"] * found).sum().cpu()
        else:
            of = LossInputs(found.squeeze(-1), inputs, [len(targets)], batch.parameters)
            total = total + LOSSES[loss].terms(of).sum().cpu()
    return total.item(), list(torch.autograd.grad(total, list(slot.parameters.values()))), logprobs


def assert_close(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], within: float = 1e-5) -> None:
    largest = max(float(each.abs().max()) for each in theirs)
    assert largest > 1e-2
    for one, other in zip(ours, theirs, strict=True):
        assert float((one - other).abs().max()) < within * max(1.0, largest)


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize(("loss", "targets"), [*((loss, None) for loss in LOSSES), ("cross_entropy", 3)])
def test_packed_datums_have_the_gradient_of_each_alone(
    base: BaseModel, loss: str, targets: int | None, head: bool
) -> None:
    slot = opened(base, head=head)
    datums = random_datums(loss, 14, tiny_model.VOCABULARY, seed=3, targets=targets)
    expected = reference(base, slot, loss, batch_of(loss, datums))
    metrics, logprobs = run(base, slot, loss, datums)
    assert metrics["loss:sum"] == pytest.approx(expected[0], rel=1e-5, abs=1e-4)
    assert metrics["tokens:sum"] == sum(datum.header.length for datum in datums)
    for ours, theirs in zip(logprobs, expected[2], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert_close(gradient(slot), expected[1])


@pytest.mark.parametrize(("single_row", "shares_rows"), [(True, True), (False, False)])
def test_every_layout_of_rows_gives_the_same_gradient(base: BaseModel, single_row: bool, shares_rows: bool) -> None:
    slot = opened(base)
    datums = random_datums("gspo", 9, tiny_model.VOCABULARY, seed=4)
    expected = reference(base, slot, "gspo", batch_of("gspo", datums))
    base.single_row, base.shares_rows = single_row, shares_rows
    _, logprobs = run(base, slot, "gspo", datums)
    assert np.concatenate(logprobs) == pytest.approx(np.concatenate(expected[2]), abs=1e-5)
    assert_close(gradient(slot), expected[1])


def test_datums_with_different_numbers_of_targets_keep_their_order(base: BaseModel) -> None:
    slot = opened(base)
    kinds = [random_datums("cross_entropy", 3, tiny_model.VOCABULARY, seed, k) for seed, k in enumerate((None, 2, 5))]
    datums = [datum for group in zip(*kinds, strict=True) for datum in group]
    expected = reference(base, slot, "cross_entropy", batch_of("cross_entropy", datums))
    metrics, logprobs = run(base, slot, "cross_entropy", datums)
    assert metrics["loss:sum"] == pytest.approx(expected[0], rel=1e-5, abs=1e-4)
    assert [len(each) for each in logprobs] == [len(each) for each in expected[2]]
    assert np.concatenate(logprobs) == pytest.approx(np.concatenate(expected[2]), abs=1e-5)
    assert_close(gradient(slot), expected[1])


def test_sparse_targets_are_the_dense_ones_to_the_bit(base: BaseModel) -> None:
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 40, (9, 6)) * (draw.random((9, 6)) < 0.3)
    weights = (draw.normal(size=(9, 6)) * (draw.random((9, 6)) < 0.3)).astype(np.float32)
    tokens = draw.integers(0, 40, 9).tolist()
    slots = [opened(base, name) for name in ("dense", "sparse")]
    dense = run(base, slots[0], "cross_entropy", [Datum.of(tokens, target_tokens=targets, weights=weights)])
    sparse = Datum.of(tokens, target_tokens=Sparse(targets, np.int64), weights=Sparse(weights))
    assert str(run(base, slots[1], "cross_entropy", [sparse])) == str(dense)
    assert all(map(torch.equal, gradient(slots[0]), gradient(slots[1])))


def test_weights_of_minus_the_slopes_give_the_gradient_of_a_custom_loss(base: BaseModel) -> None:
    """The client computes such a loss itself, from `forward_only`."""
    slot = opened(base)
    datums = random_datums("cross_entropy", 4, tiny_model.VOCABULARY)
    batch = batch_of("cross_entropy", datums)
    _, logprobs = run(base, slot, "cross_entropy", datums, forward_only=True)
    weighted = [
        Datum.of(d.tokens.tolist(), target_tokens=d.targets.dense(np.int64), weights=-2 * p)
        for d, p in zip(batch.datums, logprobs, strict=True)
    ]
    run(base, slot, "cross_entropy", weighted)
    total = torch.zeros((), dtype=torch.float64)
    for datum in batch.datums:
        logits = base.model(input_ids=torch.tensor([datum.tokens.tolist()], device=base.device)).logits[0].double()
        targets = torch.from_numpy(datum.targets.dense(np.int64)).to(base.device)
        total = total + (torch.log_softmax(logits, -1).gather(-1, targets[:, None]) ** 2).sum().cpu()
    assert_close(gradient(slot), torch.autograd.grad(total, list(slot.parameters.values())))


@pytest.mark.parametrize("targets", [None, 3])
def test_forward_only_changes_nothing_of_the_slot(base: BaseModel, targets: int | None) -> None:
    slot = opened(base, dropout=0.5)
    datums = random_datums("cross_entropy", 4, tiny_model.VOCABULARY, targets=targets)
    run(base, slot, "cross_entropy", datums)
    before, random_state = gradient(slot), slot.rng["cpu"].clone()
    first = run(base, slot, "cross_entropy", datums, forward_only=True)
    # Without dropout, the pass is no draw.
    assert str(run(base, slot, "cross_entropy", datums, forward_only=True)) == str(first)
    expected = reference(base, replaced(slot), "cross_entropy", batch_of("cross_entropy", datums))
    assert np.concatenate(first[1]) == pytest.approx(np.concatenate(expected[2]), abs=1e-5)
    assert all(map(torch.equal, gradient(slot), before))
    assert torch.equal(slot.rng["cpu"], random_state)


def replaced(slot: AdapterSlot) -> AdapterSlot:
    """The slot without dropout."""
    return replace(slot, factors={name: replace(f, dropout=0.0) for name, f in slot.factors.items()})


def test_dropout_draws_from_the_slots_random_numbers(base: BaseModel) -> None:
    one, other = opened(base, "one", 0.5), opened(base, "other", 0.5)
    datums = random_datums("ppo", 4, tiny_model.VOCABULARY)
    first, second = run(base, one, "ppo", datums), run(base, one, "ppo", datums)
    assert str(first) != str(second)
    torch.manual_seed(99)
    assert str(run(base, other, "ppo", datums)) == str(first)
    assert str(run(base, other, "ppo", datums)) == str(second)


def test_commands_add_their_gradients(base: BaseModel) -> None:
    slot = opened(base)
    datums = random_datums("ppo", 6, tiny_model.VOCABULARY)
    parts = []
    for half in (datums[:3], datums[3:]):
        run(base, slot, "ppo", half)
        parts.append(gradient(slot))
        slot.optimizer.zero_grad(set_to_none=True)
    for half in (datums[:3], datums[3:]):
        run(base, slot, "ppo", half)
    assert all(map(torch.equal, gradient(slot), [one + other for one, other in zip(*parts, strict=True)]))


class Failure(Exception):
    pass


@pytest.mark.parametrize("accumulated", [True, False])
@pytest.mark.parametrize("kind", ["loss", "memory", "bug", "abandoned"])
def test_a_command_that_fails_leaves_gradient_and_random_state(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, kind: str, accumulated: bool
) -> None:
    slot = opened(base, dropout=0.3)
    if accumulated:
        run(base, slot, "ppo", random_datums("ppo", 2, tiny_model.VOCABULARY))
    before, random_state = gradient(slot), slot.rng["cpu"].clone()
    datums = random_datums("importance_sampling", 12, tiny_model.VOCABULARY)
    if kind == "loss":
        # The ratio is exp(1000).
        datums.append(Datum.of([1, 2], target_tokens=[2, 3], logprobs=[-1000, -1], advantages=[1, 1]))
    work = forward_backward_units(base, slot, batch_of("importance_sampling", datums), BUDGET)
    next(work)
    error: type[Exception] = ProblemError
    message = "Loss -?inf or its gradient norm .* is not finite.*; the gradient is unchanged"
    if kind == "abandoned":
        work.close()
    else:
        if kind != "loss":
            error, message = (ProblemError, "does not fit") if kind == "memory" else (Failure, "a bug")
            raised = torch.OutOfMemoryError("no memory left") if kind == "memory" else Failure("a bug")

            def fail(*_: object) -> None:
                raise raised

            monkeypatch.setattr(client_step, "_compute", fail)
        with pytest.raises(error, match=message):
            finish(work)
    assert len(gradient(slot)) == (len(slot.parameters) if accumulated else 0)
    assert all(map(torch.equal, gradient(slot), before))
    assert torch.equal(slot.rng["cpu"], random_state)


def test_a_pass_without_probabilities_is_refused_also_without_weights(base: BaseModel) -> None:
    slot = opened(base)
    with torch.no_grad():
        next(iter(slot.parameters.values())).fill_(torch.nan)
    datum = Datum.of([1, 2], target_tokens=[2, 3], weights=[0, 0])
    with pytest.raises(ProblemError, match="a log-probability is not a number"):
        run(base, slot, "cross_entropy", [datum], forward_only=True)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_updates_are_those_of_adamw(base: BaseModel, clip: float) -> None:
    slot = opened(base)
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in slot.parameters.values()]
    adamw = torch.optim.AdamW(copies, lr=0.1, betas=(0.8, 0.9), eps=1e-9, weight_decay=0.2)
    for number in range(3):
        run(base, slot, "cross_entropy", random_datums("cross_entropy", 5, tiny_model.VOCABULARY, number))
        for copy, grad in zip(copies, gradient(slot), strict=True):
            copy.grad = grad
        norm = torch.nn.utils.clip_grad_norm_(copies, clip or 1e9)
        adamw.param_groups[0]["lr"] = 0.1 / (number + 1)
        adamw.step()
        metrics = optim_step(
            base,
            slot,
            update(
                learning_rate=0.1 / (number + 1), beta1=0.8, beta2=0.9, eps=1e-9, weight_decay=0.2, grad_clip_norm=clip
            ),
        )
        assert metrics == {"grad_norm": pytest.approx(float(norm)), "learning_rate": 0.1 / (number + 1)}
        assert not gradient(slot)
    assert slot.updates == 3
    for ours, theirs in zip(slot.parameters.values(), copies, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_an_update_without_a_gradient_is_one_with_zeros(base: BaseModel) -> None:
    slot = opened(base)
    run(base, slot, "ppo", random_datums("ppo", 3, tiny_model.VOCABULARY))
    optim_step(base, slot, update())
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in slot.parameters.values()]
    adamw = torch.optim.AdamW(copies, lr=0.01, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    for copy, parameter in zip(copies, slot.parameters.values(), strict=True):
        copy.grad = torch.zeros_like(copy)
        adamw.state[copy] = {name: value.clone() for name, value in slot.optimizer.state[parameter].items()}
    adamw.step()
    assert optim_step(base, slot, update())["grad_norm"] == 0
    assert slot.updates == 2
    assert all(torch.equal(*pair) for pair in zip(slot.parameters.values(), copies, strict=True))


@pytest.mark.parametrize("gradient_norm", [0.0, 1e-12])
def test_parameters_without_a_gradient_stay_finite(base: BaseModel, gradient_norm: float) -> None:
    slot = opened(base)
    for parameter in slot.parameters.values():
        parameter.grad = torch.full_like(parameter, gradient_norm)
    optim_step(base, slot, update(eps=client_step.SMALLEST_EPSILON))
    assert all(parameter.isfinite().all() for parameter in slot.parameters.values())
    with pytest.raises(ProblemError, match=r"adam_params.eps is 0. Use at least 1e-30"):
        optim_step(base, slot, update(eps=0.0))


def test_a_gradient_that_is_not_finite_is_cleared_without_an_update(base: BaseModel) -> None:
    slot = opened(base)
    before = [parameter.detach().clone() for parameter in slot.parameters.values()]
    next(iter(slot.parameters.values())).grad = torch.full_like(before[0], torch.inf)
    with pytest.raises(ProblemError, match="Gradient norm inf is not finite") as refused:
        optim_step(base, slot, update())
    assert refused.value.problem.reason == "StepNotFinite"
    assert (slot.updates, gradient(slot), len(slot.optimizer.state)) == (0, [], 0)
    assert all(torch.equal(*pair) for pair in zip(slot.parameters.values(), before, strict=True))


def test_an_update_that_does_not_fit_keeps_the_gradient(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)
    run(base, slot, "ppo", random_datums("ppo", 3, tiny_model.VOCABULARY))
    before = gradient(slot)

    def full(_: AdapterSlot) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(client_step, "check_memory", full)
    with pytest.raises(ProblemError, match="An update does not fit"):
        optim_step(base, slot, update())
    assert (slot.updates, len(slot.optimizer.state)) == (0, 0)
    assert all(map(torch.equal, gradient(slot), before))


def test_an_update_that_breaks_off_cannot_be_undone(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)

    def fail() -> None:
        raise RuntimeError("half done")

    monkeypatch.setattr(slot.optimizer, "step", fail)
    with pytest.raises(StepAborted, match="half done"):
        optim_step(base, slot, update())


def test_recomputed_activations_give_the_same_gradient(model_dir: Path) -> None:
    found = []
    for recompute in ("on", "off"):
        base = tiny_model.load(model_dir, gradient_checkpointing=recompute)
        slot = opened(base, head=True)
        for targets in (None, 3):
            run(base, slot, "cross_entropy", random_datums("cross_entropy", 6, tiny_model.VOCABULARY, 1, targets))
        found.append(gradient(slot))
    assert_close(found[0], found[1])
