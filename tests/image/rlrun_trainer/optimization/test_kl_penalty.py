"""The price of leaving the starting model: its gradient, its controller, and what it does to a run."""

import math
from dataclasses import replace

import pytest
import torch
from rlrun.api.run_sections.training import KlPenalty
from rlrun.protocol.trainer import SampleLoss
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.optimization.kl_penalty import divergence, next_beta
from rlrun_trainer.optimization.step import StepPlan, train_step

from tests.image.rlrun_trainer.optimization.test_objective import gradients_of, mixed
from tests.image.rlrun_trainer.optimization.test_policy_loss import opened
from tests.support import tiny_model

PLAN = StepPlan(learning_rate=1e-2, temperature=0.7, micro_batch_tokens=64, max_grad_norm=1e9)
FIXED = KlPenalty(beta=0.3)


def passes(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one entry with every forward pass of the model: whether it may have a gradient."""
    seen: list[bool] = []
    hidden = BaseModel.hidden

    def counted(self: BaseModel, *arguments: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return hidden(self, *arguments)

    monkeypatch.setattr(BaseModel, "hidden", counted)
    return seen


def test_the_estimate_by_hand() -> None:
    logprobs = torch.tensor([math.log(0.5), math.log(0.2), -1.0, -200.0], requires_grad=True)
    reference = torch.tensor([math.log(0.25), math.log(0.4), -1.0, -1.0])
    kl = divergence(logprobs, reference)
    # q/p - log(q/p) - 1 for q/p = 1/2, 2, 1; the last one is bounded.
    assert kl[:3].tolist() == pytest.approx([0.5 + math.log(2) - 1, 2 - math.log(2) - 1, 0.0], abs=1e-6)
    [gradient] = torch.autograd.grad(kl.sum(), logprobs)
    # d/d log p = 1 - q/p.
    assert gradient.tolist() == pytest.approx([0.5, -1.0, 0.0, 0.0], abs=1e-6)
    assert kl.isfinite().all()


def test_its_mean_is_the_divergence() -> None:
    torch.manual_seed(0)
    p, q = torch.softmax(torch.randn(2, 6), -1)
    drawn = torch.multinomial(p, 200_000, replacement=True)
    exact = float((p * (p / q).log()).sum())
    assert float(divergence(p.log()[drawn], q.log()[drawn]).mean()) == pytest.approx(exact, rel=0.02)


def test_gradient_equals_autograd_of_the_definition(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)
    batch = mixed(seed=8)
    policy = [s for s in batch if s.loss is SampleLoss.policy]
    without, plain = gradients_of(base, batch, PLAN, monkeypatch)
    got, metrics = gradients_of(base, batch, replace(PLAN, kl_penalty=FIXED), monkeypatch)
    price = torch.zeros(())
    tokens = 0
    for sample in policy:
        drawn = [i - 1 for i, m in enumerate(sample.loss_mask) if m]
        with torch.no_grad():
            base.model.disable_adapters()
            reference = tiny_model.plain_logprobs(base, sample, PLAN.temperature)[drawn]
            base.model.enable_adapters()
        base.activate(slot)
        logp = tiny_model.plain_logprobs(base, sample, PLAN.temperature)[drawn]
        price = price + ((reference - logp).exp() - (reference - logp) - 1).sum()
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


def test_a_fresh_adapter_is_the_reference(base: BaseModel) -> None:
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
        plan = replace(PLAN, temperature=1.0, kl_penalty=penalty)
        for _ in range(12):
            kl = train_step(base, slot, tiny_model.samples(24, noise=0.0), plan)["kl_penalty/kl"]
        base.close("a")
        return kl

    assert drift(KlPenalty(beta=10.0)) < drift(KlPenalty(beta=1e-6)) / 5
