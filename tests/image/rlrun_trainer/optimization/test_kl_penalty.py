"""The price of leaving the starting model: its gradient, its controller, and what it does to a run."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from rlrun.api.run_sections.training import KlPenalty
from rlrun.protocol.train_batch import SampleLoss
from rlrun.service.errors import ProblemError
from rlrun_trainer.model.adapter_layer import activate
from rlrun_trainer.model.base_model import BaseModel, Reference
from rlrun_trainer.optimization.kl_penalty import WEIGHT_LIMIT, divergence, next_beta
from rlrun_trainer.optimization.sampling_distribution import PLAIN
from rlrun_trainer.optimization.step import train_step
from rlrun_trainer.runtime.process_group import ProcessGroup, StepAborted

from tests.image.rlrun_trainer.optimization.test_objective import gradients_of, mixed
from tests.image.rlrun_trainer.optimization.test_policy_loss import PLAN, TEMPERATURE, opened
from tests.support import tiny_model

FIXED = KlPenalty(beta=0.3)
CATEGORICAL = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
"""Logits of a policy and of a reference over six tokens."""
OLDER = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 2
"""Difference to the logits of the policy that sampled."""


def passes(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one entry with every forward pass of the model: whether it may have a gradient."""
    seen: list[bool] = []
    hidden = BaseModel.hidden_states

    def counted(self: BaseModel, *arguments: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return hidden(self, *arguments)

    monkeypatch.setattr(BaseModel, "hidden_states", counted)
    return seen


def k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Schulman's estimator of the value, differentiated through: the gradient of the other direction."""
    return (reference - logprobs).expm1() - (reference - logprobs)


def expected_gradient(estimate: Any, sampler: torch.Tensor) -> torch.Tensor:
    """Gradient of a categorical's logits, as tokens from `sampler` give it on average: exactly, over all tokens."""
    logits, q = CATEGORICAL
    moving = logits.clone().requires_grad_()
    logp = moving.log_softmax(-1)
    [gradient] = torch.autograd.grad((sampler * estimate(logp, q.log_softmax(-1))).sum(), moving)
    return gradient


def test_kl_estimate_and_its_gradient_equal_values_computed_by_hand() -> None:
    logprobs = torch.tensor([math.log(0.5), math.log(0.2), -1.0, -200.0, -1.0], requires_grad=True)
    reference = torch.tensor([math.log(0.25), math.log(0.4), -1.0, -1.0, -200.0])
    engine = torch.tensor([math.log(0.5), math.log(0.1), -9.0, -200.0, -1.0])
    kl = divergence(logprobs, reference, engine)
    # w (q/p - log(q/p) - 1) for q/p = 1/2, 2, 1 and w = 1, 2, at most 8; the others are bounded.
    assert kl[:3].tolist() == pytest.approx([0.5 + math.log(2) - 1, 2 * (2 - math.log(2) - 1), 0.0], abs=1e-6)
    [gradient] = torch.autograd.grad(kl.sum(), logprobs)
    # w log(p/q).
    assert gradient.tolist() == pytest.approx([math.log(2), -2 * math.log(2), 0.0, -20.0, 20.0], abs=1e-5)
    assert kl.isfinite().all()


def test_a_token_that_the_trainer_finds_impossible_has_no_gradient() -> None:
    logprobs = torch.tensor([-torch.inf, -1.0], requires_grad=True)
    kl = divergence(logprobs, torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -1.0]))
    [gradient] = torch.autograd.grad(kl.sum(), logprobs)
    assert kl.isfinite().all()
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("sampler", ["policy", "older policy"])
def test_expected_gradient_is_that_of_the_divergence(sampler: str) -> None:
    logits, q = CATEGORICAL
    moving = logits.clone().requires_grad_()
    logp = moving.log_softmax(-1)
    [exact] = torch.autograd.grad((logp.exp() * (logp - q.log_softmax(-1))).sum(), moving)
    drawn = (logits if sampler == "policy" else logits + OLDER).log_softmax(-1)
    assert (logits.log_softmax(-1) - drawn).exp().max() < WEIGHT_LIMIT
    ours = expected_gradient(lambda p, r: divergence(p, r, drawn), drawn.exp())
    assert torch.allclose(ours, exact, atol=1e-7, rtol=1e-5)
    # Planted mistake: the gradient of k3 itself is that of the other direction, KL(reference, policy).
    backwards = expected_gradient(k3, logits.softmax(-1))
    [other] = torch.autograd.grad(-(q.softmax(-1) * moving.log_softmax(-1)).sum(), moving)
    assert torch.allclose(backwards, other, atol=1e-6)
    assert not torch.allclose(backwards, exact, atol=1e-2)


def test_mean_of_the_kl_estimate_is_the_exact_divergence() -> None:
    logits, q = CATEGORICAL
    logp, drawn = logits.log_softmax(-1), (logits + OLDER).log_softmax(-1)
    exact = float((logp.exp() * (logp - q.log_softmax(-1))).sum())
    estimated = (drawn.exp() * divergence(logp, q.log_softmax(-1), drawn)).sum()
    assert float(estimated) == pytest.approx(exact, rel=1e-5)


def test_gradient_equals_autograd_of_the_definition(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)
    batch = mixed(seed=8)
    policy = [s for s in batch if s.loss is SampleLoss.policy]
    slot.reference = Reference.base
    without, plain = gradients_of(base, batch, PLAN, monkeypatch)
    got, metrics = gradients_of(base, batch, replace(PLAN, kl_penalty=FIXED), monkeypatch)
    price = torch.zeros(())
    tokens = 0
    for sample in policy:
        drawn = [i - 1 for i, m in enumerate(sample.loss_mask) if m]
        with torch.no_grad():
            activate(base.layers, {})
            reference = tiny_model.plain_logprobs(base, sample, TEMPERATURE)[drawn]
        base.activate(slot)
        logp = tiny_model.plain_logprobs(base, sample, TEMPERATURE)[drawn]
        # The ratio times k3, differentiated through both; at the ratio's limit the gradient of k2 with k3's value.
        ratio = (logp - torch.tensor([sample.logprobs[i + 1] for i in drawn])).exp()
        value, square = k3(logp, reference), (logp - reference) ** 2 / 2
        limited = WEIGHT_LIMIT * (square - square.detach() + value.detach())
        price = price + torch.where(ratio < WEIGHT_LIMIT, ratio * value, limited).sum()
        tokens += len(drawn)
    gradients = torch.autograd.grad(price, list(slot.parameters.values()))
    for ours, bare, theirs in zip(got, without, gradients, strict=True):
        expected = bare + FIXED.beta * theirs / metrics["batch/trainable_tokens"]
        assert torch.allclose(ours, expected, atol=1e-6, rtol=1e-3)
    kl = float(price.detach()) / tokens
    assert kl > 1e-3
    assert metrics["kl_penalty/kl"] == pytest.approx(kl, rel=1e-3)
    assert metrics["kl_penalty/beta"] == FIXED.beta
    added = FIXED.beta * kl * tokens / metrics["batch/trainable_tokens"]
    assert metrics["loss/mean"] == pytest.approx(plain["loss/mean"] + added, rel=1e-3)


def test_a_fresh_adapter_has_no_divergence_from_its_reference(base: BaseModel) -> None:
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 1)
    metrics = train_step(base, slot, tiny_model.samples(12), replace(PLAN, kl_penalty=FIXED))
    assert metrics["kl_penalty/kl"] == pytest.approx(0.0, abs=1e-9)
    metrics = train_step(base, slot, tiny_model.samples(12), replace(PLAN, kl_penalty=FIXED))
    assert metrics["kl_penalty/kl"] > 1e-6


def test_other_runs_do_not_move_the_reference(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)
    _, alone = gradients_of(base, tiny_model.samples(12), replace(PLAN, kl_penalty=FIXED), monkeypatch)
    other = base.open("b", tiny_model.MODEL, tiny_model.SHAPE, 2)
    train_step(base, other, tiny_model.samples(12, seed=4), replace(PLAN, learning_rate=0.1))
    before = other.files()
    shared = train_step(base, slot, tiny_model.samples(12), replace(PLAN, kl_penalty=FIXED))
    assert shared["kl_penalty/kl"] == alone["kl_penalty/kl"]
    assert other.files() == before


@dataclass(frozen=True)
class TwoProcesses(ProcessGroup):
    """The first of two processes. What it sends is lost."""

    def send_message(self, value: Any, message_format: Any, rank: int) -> None:
        pass

    def send_columns(self, columns: Any, rank: int) -> None:
        pass


def test_a_reference_that_does_not_fit_ends_a_process_of_several(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = opened(base)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("a planted failure")

    monkeypatch.setattr(BaseModel, "fix_reference", full)
    with pytest.raises(ProblemError, match="TrainerOutOfMemory"):
        train_step(base, slot, tiny_model.samples(4), replace(PLAN, kl_penalty=FIXED))
    # The other processes are in the collective operations of their passes: this one must not wait for their results.
    monkeypatch.setattr(base.loader, "world", TwoProcesses(size=2))
    with pytest.raises(StepAborted, match="a planted failure"):
        train_step(base, slot, tiny_model.samples(4), replace(PLAN, kl_penalty=FIXED))


@pytest.mark.proves("klPenalty.enabled")
@pytest.mark.parametrize("penalty", [None, KlPenalty(enabled=False)])
def test_model_runs_once_without_a_kl_penalty(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, penalty: KlPenalty | None
) -> None:
    slot = opened(base)
    seen = passes(base, monkeypatch)
    metrics = train_step(base, slot, tiny_model.samples(12), replace(PLAN, kl_penalty=penalty))
    assert seen == [True] * int(metrics["batch/micro_batches"])
    assert not [key for key in metrics if key.startswith("kl_penalty")]
    assert slot.kl_beta is None


def test_reference_runs_without_gradient_with_a_kl_penalty(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)
    seen = passes(base, monkeypatch)
    metrics = train_step(base, slot, tiny_model.samples(12), replace(PLAN, kl_penalty=FIXED))
    assert seen == [False, True] * int(metrics["batch/micro_batches"])
    seen.clear()
    demonstrations = [s for s in mixed(seed=1) if s.loss is SampleLoss.cross_entropy]
    metrics = train_step(base, slot, demonstrations, replace(PLAN, kl_penalty=FIXED))
    assert all(seen)
    assert "kl_penalty/kl" not in metrics


def test_the_controller_follows_ziegler() -> None:
    penalty = KlPenalty(beta=0.2, target_kl=0.05)
    assert next_beta(penalty, 0.2, 0.05) == pytest.approx(0.2)
    assert next_beta(penalty, 0.2, 0.055) == pytest.approx(0.2 * (1 + 0.1 * 0.1))
    assert next_beta(penalty, 0.2, 5.0) == pytest.approx(0.2 * 1.02)
    assert next_beta(penalty, 0.2, 0.0) == pytest.approx(0.2 * 0.98)
    assert next_beta(FIXED, 0.3, 99.0) == 0.3


@pytest.mark.proves("klPenalty.targetKl")
def test_beta_moves_towards_the_target_and_only_with_one(base: BaseModel) -> None:
    slot = opened(base)
    far = replace(PLAN, kl_penalty=KlPenalty(beta=0.3, target_kl=1e-6))
    betas = [train_step(base, slot, tiny_model.samples(12), far)["kl_penalty/beta"] for _ in range(3)]
    assert betas == pytest.approx([0.3, 0.3 * 1.02, 0.3 * 1.02**2])
    assert slot.kl_beta == pytest.approx(0.3 * 1.02**3)
    near = replace(PLAN, kl_penalty=KlPenalty(beta=0.3, target_kl=100))
    assert train_step(base, slot, tiny_model.samples(12), near)["kl_penalty/beta"] == pytest.approx(0.3 * 1.02**3)
    assert slot.kl_beta == pytest.approx(0.3 * 1.02**3 * 0.98)
    fixed = replace(PLAN, kl_penalty=FIXED)
    assert [train_step(base, slot, tiny_model.samples(12), fixed)["kl_penalty/beta"] for _ in range(2)] == [0.3, 0.3]


@pytest.mark.proves("klPenalty.beta")
def test_the_penalty_keeps_the_policy_near(base: BaseModel) -> None:
    def drift(penalty: KlPenalty) -> float:
        slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 1)
        plan = replace(PLAN, distribution=PLAIN, kl_penalty=penalty)
        for _ in range(12):
            kl = train_step(base, slot, tiny_model.samples(24, noise=0.0), plan)["kl_penalty/kl"]
        base.close("a")
        return kl

    assert drift(KlPenalty(beta=10.0)) < drift(KlPenalty(beta=1e-6)) / 5
