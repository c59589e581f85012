"""Every loss that a run can choose: by hand on a few numbers, and against autograd on a model."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.api.run_sections.training import Loss, RatioLimit, RatioType
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.optimization.objective import chunk_tokens
from rlrun_trainer.optimization.policy_loss import PolicyLoss, policy_loss
from rlrun_trainer.optimization.sampling_distribution import SamplingDistribution
from rlrun_trainer.optimization.step import StepPlan, train_step

from tests.image.rlrun_trainer.optimization.test_policy_loss import PLAN, TEMPERATURE, opened
from tests.support import tiny_model

RATIOS = [2.0, 0.5, 9.0, 0.1, 0.2]
"""Of two samples: the first has three tokens and a product of 9, the second has two and 0.02."""
ADVANTAGES = [1.0, 1.0, 1.0, -1.0, -1.0]
SAMPLE_OF = [0, 0, 0, 1, 1]
WIDE = {"sequence_mean_low": 0.0, "sequence_mean_high": 1000.0}


def test_bounds_themselves_are_within() -> None:
    # Powers of two: the ratios are exact.
    logprobs, engine = torch.zeros(2), torch.tensor([2.0, 0.5]).log()
    for how in (
        Loss(ratio_low=0.5, ratio_high=2, **WIDE),
        Loss(ratio_low=0.0, ratio_high=9, sequence_token_low=0.5, sequence_token_high=2, **WIDE),
        Loss(ratio_low=0.0, ratio_high=9, sequence_mean_low=0.5, sequence_mean_high=2),
    ):
        assert policy_loss(logprobs, engine, torch.ones(2), torch.tensor([0, 1]), 2, how).kept.all()


@pytest.mark.parametrize("limit", RatioLimit)
def test_left_out_tokens_add_nothing_to_the_loss(limit: RatioLimit) -> None:
    how = Loss(ratio_limit=limit, ratio_low=0.0, ratio_high=100, sequence_mean_low=0.0, sequence_mean_high=2.0)
    logprobs, engine = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -9.0])
    both = policy_loss(logprobs, engine, torch.ones(2), torch.tensor([0, 1]), 2, how)
    alone = policy_loss(logprobs[:1], engine[:1], torch.ones(1), torch.tensor([0]), 1, how)
    assert both.kept.tolist() == [True, False]
    assert float(both.loss) == pytest.approx(float(alone.loss))


@pytest.mark.parametrize(
    ("device", "vocabulary", "top_p", "tokens"),
    [
        ("cpu", 2**10, 1.0, 4096),
        ("cpu", 2**20, 0.9, 256),
        ("cuda", 2**10, 1.0, 32768),
        ("cuda", 151_936, 1.0, 2048),
        ("cuda", 151_936, 0.9, 512),
    ],
)
def test_logits_of_a_chunk_are_bounded_and_chunks_are_not_too_small(
    device: str, vocabulary: int, top_p: float, tokens: int
) -> None:
    base = SimpleNamespace(device=torch.device(device), vocab_size=vocabulary)
    assert chunk_tokens(base, SamplingDistribution(Sampling(top_p=top_p))) == tokens  # type: ignore[arg-type]


def by_hand(**choice: Any) -> tuple[PolicyLoss, list[float]]:
    """The loss at p = 1/2 for every token, and d loss / d log p."""
    logprobs = torch.full((5,), math.log(0.5), requires_grad=True)
    engine = logprobs.detach() - torch.tensor(RATIOS).log()
    result = policy_loss(logprobs, engine, torch.tensor(ADVANTAGES), torch.tensor(SAMPLE_OF), 2, Loss(**choice))
    result.loss.backward()
    assert logprobs.grad is not None
    return result, logprobs.grad.tolist()


@pytest.mark.proves("loss.ratioLimit", "loss.ratioLow", "loss.ratioHigh")
def test_masked_tokens_have_no_gradient() -> None:
    result, gradient = by_hand(ratio_low=0.15, ratio_high=8, **WIDE)
    assert result.kept.tolist() == [True, True, False, False, True]
    assert gradient == pytest.approx([-2.0, -0.5, 0.0, 0.0, 0.2])
    # -(2 + 0.5 - 0.2) * log 0.5
    assert float(result.loss.detach()) == pytest.approx(2.3 * math.log(2))
    assert result.ratio.tolist() == pytest.approx(RATIOS)
    # exp(x) - x - 1 at x = log 2.
    assert float(result.mismatch_kl[0]) == pytest.approx(1 - math.log(2), rel=1e-6)


@pytest.mark.proves("loss.ratioLimit", "loss.ratioLow", "loss.ratioHigh")
def test_clipped_ratios_weigh_as_the_bound_does() -> None:
    result, gradient = by_hand(ratio_limit=RatioLimit.clip, ratio_low=0.15, ratio_high=1.5, **WIDE)
    assert result.kept.all()
    assert gradient == pytest.approx([-1.5, -0.5, -1.5, 0.15, 0.2])


@pytest.mark.proves("loss.ratioLimit")
def test_ppo_takes_the_pessimistic_objective() -> None:
    result, gradient = by_hand(ratio_limit=RatioLimit.ppo, ratio_low=0.8, ratio_high=1.2, **WIDE)
    # A > 0: min(r, 1.2) with a gradient below 1.2 only; A < 0: -max(r, 0.8), and both ratios lie below that.
    assert float(result.loss.detach()) == pytest.approx(-(1.2 + 0.5 + 1.2 - 0.8 - 0.8))
    assert gradient == pytest.approx([0.0, -0.5, 0.0, 0.0, 0.0])
    assert result.kept.tolist() == [False, True, False, False, False]


@pytest.mark.proves("loss.ratioType")
def test_a_sequence_weighs_by_the_geometric_mean_of_its_ratios() -> None:
    first, second = 9 ** (1 / 3), 0.02**0.5
    result, gradient = by_hand(ratio_type=RatioType.sequence, ratio_low=0.1, ratio_high=3, **WIDE)
    assert result.ratio.tolist() == pytest.approx([first] * 3 + [second] * 2)
    assert gradient == pytest.approx([-first] * 3 + [second] * 2)
    # The mismatch remains each token's own.
    assert float(result.mismatch_kl[0]) == pytest.approx(1 - math.log(2), rel=1e-6)
    result, gradient = by_hand(ratio_type=RatioType.sequence, ratio_low=0.15, ratio_high=2, **WIDE)
    assert not result.kept.any()
    result, gradient = by_hand(
        ratio_type=RatioType.sequence, ratio_limit=RatioLimit.clip, ratio_low=0.2, ratio_high=2, **WIDE
    )
    assert gradient == pytest.approx([-2, -2, -2, 0.2, 0.2])


@pytest.mark.proves("loss.ratioType")
@pytest.mark.parametrize("kind", RatioType)
@pytest.mark.parametrize("length", [1, 16, 1024, 4096, 16384])
def test_a_small_mismatch_excludes_no_sequence_of_any_length(kind: RatioType, length: int) -> None:
    # log p - log m normal with this mean and variance has a mismatch of 0.001 nats per token.
    noise = torch.randn(32, length, generator=torch.Generator().manual_seed(length)) * math.sqrt(0.002)
    log_ratio = (noise - 0.001).flatten()
    result = policy_loss(
        log_ratio,
        torch.zeros(32 * length),
        torch.ones(32 * length),
        torch.arange(32).repeat_interleave(length),
        32,
        Loss(ratio_type=kind),
    )
    assert float(result.mismatch_kl.mean()) == pytest.approx(0.001, rel=0.4)
    assert result.kept.all()
    # Kept and weighted by next to nothing would be as bad as excluded.
    assert 0.5 < float(result.ratio.min()) <= float(result.ratio.max()) < 2


@pytest.mark.parametrize("limit", RatioLimit)
def test_a_large_mismatch_excludes_whole_sequences(limit: RatioLimit) -> None:
    log_ratio = torch.tensor([-2.5, -2.5, 0.1, -0.1])
    how = Loss(ratio_type=RatioType.sequence, ratio_limit=limit)
    result = policy_loss(log_ratio, torch.zeros(4), torch.ones(4), torch.tensor([0, 0, 1, 1]), 2, how)
    assert result.kept.tolist() == [False, False, True, True]


@pytest.mark.proves("loss.sequenceTokenLow", "loss.sequenceTokenHigh")
@pytest.mark.parametrize("kind", RatioType)
@pytest.mark.parametrize("limit", RatioLimit)
def test_one_far_token_excludes_its_sequence(limit: RatioLimit, kind: RatioType) -> None:
    bounds: dict[str, Any] = {"ratio_type": kind, "ratio_limit": limit, "ratio_low": 0.0, "ratio_high": 100, **WIDE}
    first, second = [True] * 3, [True] * 2
    for low, high, kept in (
        (0.0, 100.0, first + second),
        (0.0, 8.9, [False] * 3 + second),
        (0.15, 9.1, first + [False] * 2),
    ):
        result, gradient = by_hand(sequence_token_low=low, sequence_token_high=high, **bounds)
        assert result.kept.tolist() == kept
        assert [g != 0 for g in gradient] == kept


def prime_rl(logprobs: torch.Tensor, engine: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """`default_loss_fn` of prime-rl 0.4.0 with its defaults, for one sample."""
    log_ratio = logprobs - engine
    ratio, mean = log_ratio.exp(), log_ratio.mean().exp()
    masked = (ratio < 0.125) | (ratio > 8.0) | (mean < 0.1) | (mean > 10.0)
    masked = masked | (ratio.min() < 0.0) | (ratio.max() > 100.0)
    return -((ratio * advantages).detach() * logprobs)[~masked].sum()


def test_default_loss_has_the_gradient_of_prime_rl() -> None:
    ratios = torch.tensor([2.0, 0.5, 9.0, 0.1, 1.1, 101.0, 1.0, 0.01, 0.02, 0.03])
    sample_of = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    advantages = torch.linspace(-1, 1, 10)
    logprobs = torch.linspace(-2, -1, 10, requires_grad=True)
    engine = logprobs.detach() - ratios.log()
    [ours] = torch.autograd.grad(policy_loss(logprobs, engine, advantages, sample_of, 3).loss, logprobs)
    parts = [prime_rl(logprobs[sample_of == i], engine[sample_of == i], advantages[sample_of == i]) for i in range(3)]
    [theirs] = torch.autograd.grad(torch.stack(parts).sum(), logprobs)
    assert torch.allclose(ours, theirs)
    assert theirs.count_nonzero() == 2, "the second sample has a ratio of 101, the third a mean of 0.02"


@pytest.mark.proves("loss.sequenceMeanLow", "loss.sequenceMeanHigh")
@pytest.mark.parametrize("limit", RatioLimit)
def test_sequences_far_from_the_engine_are_left_out(limit: RatioLimit) -> None:
    # Geometric means: the third root of 9 is 2.08, the square root of 0.02 is 0.14.
    bounds: dict[str, Any] = {"ratio_limit": limit, "ratio_low": 0.0, "ratio_high": 100}
    first, second = [True] * 3, [True] * 2
    for low, high, kept in (
        (0.15, 2.1, first + [False] * 2),
        (0.14, 2.0, [False] * 3 + second),
        (0.14, 2.1, first + second),
    ):
        result, gradient = by_hand(sequence_mean_low=low, sequence_mean_high=high, **bounds)
        assert result.kept.tolist() == kept
        assert [g != 0 for g in gradient] == kept


@pytest.mark.parametrize("limit", RatioLimit)
@pytest.mark.parametrize("kind", RatioType)
def test_a_token_that_the_trainer_finds_impossible_stays_a_number(limit: RatioLimit, kind: RatioType) -> None:
    logp = torch.tensor([-1.0, -torch.inf, -1.0], requires_grad=True)
    for advantage in (1.0, -1.0):
        result = policy_loss(
            logp,
            torch.full((3,), -1.0),
            torch.full((3,), advantage),
            torch.tensor([0, 1, 2]),
            3,
            Loss(ratio_limit=limit, ratio_type=kind, **WIDE),
        )
        [gradient] = torch.autograd.grad(result.loss, logp)
        assert gradient.tolist() == pytest.approx([-advantage, 0.0, -advantage])
        assert result.loss.isfinite()
        assert result.mismatch_kl.isfinite().all()


def objective(base: BaseModel, batch: list[Sample], how: Loss) -> torch.Tensor:
    """Whose gradient the step should follow, written down sample by sample from its definition."""
    total = torch.zeros(())
    trainable = 0
    for sample in batch:
        drawn = [i for i, m in enumerate(sample.loss_mask) if m]
        trainable += len(drawn)
        if sample.loss is SampleLoss.cross_entropy:
            total = total - tiny_model.plain_logprobs(base, sample)[[i - 1 for i in drawn]].sum()
            continue
        logp = tiny_model.plain_logprobs(base, sample, TEMPERATURE)[[i - 1 for i in drawn]]
        engine = torch.tensor([sample.logprobs[i] for i in drawn])
        log_ratios = logp - engine
        plain = tiny_model.plain_logprobs(base, sample)[[i - 1 for i in drawn]]
        mean = math.exp(log_ratios.mean().item())
        if not how.sequence_mean_low <= mean <= how.sequence_mean_high:
            continue
        if not how.sequence_token_low <= log_ratios.min().exp() <= log_ratios.max().exp() <= how.sequence_token_high:
            continue
        for n, i in enumerate(drawn):
            advantage, gradient = sample.advantage, logp[n]
            if sample.teacher_logprobs is not None:
                weight = min(math.exp(plain[n].item() - logp[n].item()), 8.0)
                advantage = weight * max(-5.0, min(5.0, sample.teacher_logprobs[i] - plain[n].item()))
                gradient = plain[n]
            own = log_ratios.mean() if how.ratio_type is RatioType.sequence else log_ratios[n]
            ratio = math.exp(own.item())
            if how.ratio_limit is RatioLimit.ppo:
                # Differentiable in this token's log p, the others being constants.
                moving = (own.detach() + gradient - gradient.detach()).exp()
                total = total - torch.minimum(
                    moving * advantage, moving.clamp(how.ratio_low, how.ratio_high) * advantage
                )
            elif how.ratio_limit is RatioLimit.clip:
                total = total - min(max(ratio, how.ratio_low), how.ratio_high) * advantage * gradient
            elif how.ratio_low <= ratio <= how.ratio_high:
                total = total - ratio * advantage * gradient
    return total / trainable


def mixed(seed: int) -> list[Sample]:
    """Samples with one advantage, with a teacher, and demonstrations."""
    batch = tiny_model.samples(24, seed, noise=1.0)
    for index, sample in enumerate(batch):
        if index % 3 == 1:
            told = [3 * math.sin(i + index) - 3.7 for i in range(len(sample.token_ids))]
            sample.teacher_logprobs = [value * mask for value, mask in zip(told, sample.loss_mask, strict=True)]
            sample.advantage = float("nan")
        if index % 3 == 2:
            sample.loss = SampleLoss.cross_entropy
            sample.logprobs = [0.0] * len(sample.token_ids)
            sample.advantage = 1e9
    return batch


def gradients_of(
    base: BaseModel, batch: list[Sample], plan: StepPlan, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """What reaches the optimizer of the one open slot, which then does nothing."""
    [slot] = base.slots.values()
    seen: list[torch.Tensor] = []

    def spy() -> None:
        seen.extend(p.grad.clone() for p in slot.parameters.values() if p.grad is not None)

    with monkeypatch.context() as patch:
        patch.setattr(slot.optimizer, "step", spy)
        metrics = train_step(base, slot, batch, plan)
    return seen, metrics


@pytest.mark.parametrize(("kind", "limit"), list(itertools.product(RatioType, RatioLimit)))
def test_gradient_equals_autograd_of_the_definition(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, kind: RatioType, limit: RatioLimit
) -> None:
    torch.manual_seed(0)
    slot = opened(base)
    # Means lie nearer to 1 than their factors.
    low, high = (0.5, 2.0) if kind is RatioType.token else (0.3, 1.5)
    how = Loss(
        ratio_type=kind,
        ratio_limit=limit,
        ratio_low=low,
        ratio_high=high,
        sequence_mean_low=0.2,
        sequence_mean_high=2.5,
        sequence_token_low=0.002,
        sequence_token_high=20.0,
    )
    batch = mixed(seed=6)
    wanted = torch.autograd.grad(objective(base, batch, how), list(slot.parameters.values()))
    got, metrics = gradients_of(base, batch, replace(PLAN, loss=how), monkeypatch)
    assert metrics["batch/micro_batches"] > 2
    assert 0 < metrics["is_masked/mean"] < 1
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-3)


@pytest.mark.proves("algorithm.sftSteps")
def test_demonstrations_are_counted_by_themselves(base: BaseModel) -> None:
    slot = opened(base)
    batch = mixed(seed=3)
    demonstrations = [s for s in batch if s.loss is SampleLoss.cross_entropy]
    with torch.no_grad():
        nll = [
            -float(tiny_model.plain_logprobs(base, s)[i - 1])
            for s in demonstrations
            for i, m in enumerate(s.loss_mask)
            if m
        ]
    policy = [s for s in batch if s.loss is SampleLoss.policy]
    before = slot.files()
    apart = train_step(base, slot, policy, replace(PLAN, learning_rate=0.0))
    together = train_step(base, slot, batch, replace(PLAN, learning_rate=0.0))
    assert slot.files() == before
    for key in ("mismatch_kl/all/mean", "mismatch_kl/all/max", "importance_ratio/mean", "importance_ratio/max"):
        assert together[key] == pytest.approx(apart[key], rel=1e-5), key
    assert together["loss/cross_entropy/mean"] == pytest.approx(sum(nll) / len(nll), rel=1e-5)
    assert together["loss/policy/mean"] == pytest.approx(apart["loss/mean"], rel=1e-4)
    total = together["batch/trainable_tokens"]
    share = len(nll) / total
    parts = share * together["loss/cross_entropy/mean"] + (1 - share) * together["loss/policy/mean"]
    assert together["loss/mean"] == pytest.approx(parts, rel=1e-5)
    assert not any(key.startswith("loss/") and key != "loss/mean" for key in apart)
    alone = train_step(base, slot, demonstrations, replace(PLAN, learning_rate=0.0))
    assert alone["entropy/all/mean"] > 0
    entropy = share * alone["entropy/all/mean"] + (1 - share) * apart["entropy/all/mean"]
    assert together["entropy/all/mean"] == pytest.approx(entropy, rel=1e-5)


def test_demonstrations_alone_have_no_mismatch(base: BaseModel) -> None:
    slot = opened(base)
    batch = [s for s in mixed(seed=3) if s.loss is SampleLoss.cross_entropy]
    metrics = [train_step(base, slot, batch, PLAN) for _ in range(20)]
    assert metrics[-1]["loss/mean"] < metrics[0]["loss/mean"] / 2
    assert not [key for key in metrics[0] if key.startswith(("mismatch_kl", "importance_ratio", "is_masked"))]


def test_importance_ratios_are_reported(base: BaseModel) -> None:
    slot = opened(base)
    batch = tiny_model.samples(12, seed=1)
    with torch.no_grad():
        ratios = [
            math.exp(float(tiny_model.plain_logprobs(base, s, TEMPERATURE)[i - 1]) - s.logprobs[i])
            for s in batch
            for i, m in enumerate(s.loss_mask)
            if m
        ]
    metrics = train_step(base, slot, batch, PLAN)
    assert metrics["importance_ratio/mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert metrics["importance_ratio/max"] == pytest.approx(max(ratios), rel=1e-4)
