import math
import random
from dataclasses import replace

import pytest
import torch
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.api.run_sections.training import Dppo, Loss
from rlrun.protocol.train_batch import Sample
from rlrun.service.errors import ProblemError
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.optimization.policy_loss import policy_loss
from rlrun_trainer.optimization.sampling_distribution import SamplingDistribution, token_logprobs
from rlrun_trainer.optimization.step import StepPlan, train_step
from rlrun_trainer.runtime.process_group import StepAborted

from tests.support import tiny_model
from tests.support.tensor_watch import TensorWatch

TEMPERATURE = 0.7
WARM = SamplingDistribution(Sampling(temperature=TEMPERATURE))
PLAN = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=1e9, distribution=WARM)


def reference(base: BaseModel, batch: list[Sample], temperature: float) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss, written sample by sample and token by token from its definition."""
    total = torch.zeros(())
    kl: list[float] = []
    trainable = masked = 0
    for sample in batch:
        logp = tiny_model.plain_logprobs(base, sample, temperature)
        columns = [i for i, m in enumerate(sample.loss_mask) if m]
        ratios = [math.exp(logp[i - 1].item() - sample.logprobs[i]) for i in columns]
        trainable += len(columns)
        mean = math.exp(sum(math.log(r) for r in ratios) / len(ratios))
        for i, ratio in zip(columns, ratios, strict=True):
            kl.append(ratio - math.log(ratio) - 1)
            if 1 / 8 <= ratio <= 8 and 0.1 <= mean <= 10:
                total = total - ratio * sample.advantage * logp[i - 1]
            else:
                masked += 1
    return total / trainable, {
        "mismatch_kl/all/mean": sum(kl) / trainable,
        "mismatch_kl/all/max": max(kl),
        "is_masked/mean": masked / trainable,
    }


def opened(base: BaseModel, name: str = "a") -> AdapterSlot:
    slot = base.open(name, tiny_model.MODEL, tiny_model.SHAPE, 1)
    base.activate(slot)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.normal_(std=0.05)
    return slot


def test_gradient_and_metrics_equal_the_reference(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)
    batch = tiny_model.samples(24, seed=5, noise=2.0)
    # One sample that the engine found far likelier than the trainer does: its mean ratio is out of bounds.
    far = batch[0]
    far.logprobs = [-0.2 if m else 0.0 for m in far.loss_mask]
    expected, numbers = reference(base, batch, TEMPERATURE)
    gradients = torch.autograd.grad(expected, list(slot.parameters.values()))
    seen: list[torch.Tensor] = []

    def spy() -> None:
        seen.extend(p.grad.clone() for p in slot.parameters.values() if p.grad is not None)

    monkeypatch.setattr(slot.optimizer, "step", spy)
    metrics = train_step(base, slot, batch, PLAN)
    assert metrics["batch/micro_batches"] > 2
    assert metrics["loss/mean"] == pytest.approx(float(expected), rel=1e-4)
    for key, value in numbers.items():
        assert metrics[key] == pytest.approx(value, rel=1e-3), key
    assert 0 < numbers["is_masked/mean"] < 1
    for got, wanted in zip(seen, gradients, strict=True):
        assert torch.allclose(got, wanted, atol=1e-6, rtol=1e-3)
    norm = torch.stack([g.norm() for g in gradients]).norm()
    assert metrics["optim/grad_norm"] == pytest.approx(float(norm), rel=1e-3)


def test_same_policy_on_both_sides_has_no_mismatch(base: BaseModel) -> None:
    slot = opened(base)
    batch = tiny_model.samples(16)
    for sample in batch:
        logp = tiny_model.plain_logprobs(base, sample, TEMPERATURE).tolist()
        sample.logprobs = [logp[i - 1] if m else 0.0 for i, m in enumerate(sample.loss_mask)]
    metrics = train_step(base, slot, batch, PLAN)
    assert metrics["mismatch_kl/all/mean"] < 1e-8
    assert metrics["is_masked/mean"] == 0


def test_entropy_is_that_of_the_sampling_distribution(base: BaseModel) -> None:
    slot = opened(base)
    batch = tiny_model.samples(4)
    entropies: list[float] = []
    with torch.no_grad():
        for sample in batch:
            ids = torch.tensor([sample.token_ids], device=base.device)
            logits = base.model(input_ids=ids).logits[0].float().cpu() / TEMPERATURE
            all_ = torch.distributions.Categorical(logits=logits).entropy()
            entropies += [float(all_[i - 1]) for i, m in enumerate(sample.loss_mask) if m]
    metrics = train_step(base, slot, batch, PLAN)
    assert metrics["entropy/all/mean"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-5)


@pytest.mark.parametrize("trained_head", [False, True])
@pytest.mark.parametrize("chunk", [5, 100])
def test_chunks_change_nothing(chunk: int, trained_head: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 8, requires_grad=trained_head)
    hidden, targets = torch.randn(23, 8, requires_grad=True), torch.randint(50, (23,))
    wanted = torch.log_softmax(hidden @ weight.T / 0.9, -1)
    got, entropy = token_logprobs(
        hidden, targets, lambda h: h @ weight.T, SamplingDistribution(Sampling(temperature=0.9)), chunk
    )
    assert torch.allclose(got, wanted[range(23), targets], atol=1e-6)
    # A difference of two numbers as large as the logits, which reach 20.
    assert torch.allclose(entropy, torch.distributions.Categorical(logits=wanted).entropy(), atol=5e-6)
    assert not entropy.requires_grad
    inputs = [hidden, weight] if trained_head else [hidden]
    scale = torch.arange(23)
    theirs = torch.autograd.grad((wanted[range(23), targets] * scale).sum(), inputs)
    for ours, expected in zip(torch.autograd.grad((got * scale).sum(), inputs), theirs, strict=True):
        assert torch.allclose(ours, expected, atol=1e-5)


def test_the_vocabulary_is_never_held_for_the_whole_pack() -> None:
    sizes: list[int] = []

    def head(h: torch.Tensor) -> torch.Tensor:
        sizes.append(len(h))
        return h @ torch.ones(4, 1000)

    hidden = torch.randn(64, 4, requires_grad=True)
    token_logprobs(hidden, torch.zeros(64, dtype=torch.long), head, SamplingDistribution(), 16)[0].sum().backward()
    assert max(sizes) == 16


def test_a_chunk_needs_memory_for_its_logits_twice() -> None:
    tokens, vocabulary = 16, 1000
    weight = torch.randn(4, vocabulary)
    hidden = torch.randn(4 * tokens, 4, requires_grad=True)
    with TensorWatch(tokens * vocabulary * 4) as watch:
        token_logprobs(hidden, torch.zeros(64, dtype=torch.long), lambda h: h @ weight, SamplingDistribution(), tokens)
    assert watch.most == 2


@pytest.mark.parametrize("how", [Loss(), Loss(dppo=Dppo(high=1, kl_tau=0))])
def test_impossible_tokens_are_left_out_and_stay_numbers(how: Loss) -> None:
    logp = torch.tensor([-1.0, float("-inf"), -1.0], requires_grad=True)
    result = policy_loss(logp, torch.tensor([-1.0, -1.0, -1.0]), torch.ones(3), torch.tensor([0, 1, 2]), 3, how)
    result.loss.backward()
    assert result.kept.tolist() == [True, False, True]
    assert torch.isfinite(result.mismatch_kl).all()
    assert logp.grad is not None
    assert logp.grad.tolist() == [-1.0, 0.0, -1.0]


def test_dppo_is_the_default_loss_of_prime_rl() -> None:
    """Loss and gradient of 1,000 tokens, one by one as in `default_loss_fn` of src/prime_rl/trainer/rl/loss.py in
    PrimeIntellect-ai/prime-rl at commit 559b4477 (DPPO-Binary TV, arXiv 2602.04879, and the KL term of 2602.02276).
    """
    dice, how = random.Random(0), Dppo(low=0.15, high=0.25, kl_tau=0.02)
    theirs = [math.log(dice.uniform(0.001, 1)) for _ in range(1000)]
    ours = [math.log(min(1.0, math.exp(value) * dice.uniform(0.2, 2.5))) for value in theirs]
    advantages = [dice.choice([-1.0, 0.0, 0.5, 2.0]) for _ in theirs]
    loss, gradient, masked = 0.0, [], []
    for own, engine, advantage in zip(ours, theirs, advantages, strict=True):
        moved, log_ratio = math.exp(own) - math.exp(engine), own - engine
        masked.append(moved > how.high if advantage > 0 else moved < -how.low)
        gain = 0.0 if masked[-1] else advantage * math.exp(log_ratio)
        loss += -gain + how.kl_tau * log_ratio**2
        gradient.append(-gain + 2 * how.kl_tau * log_ratio)
    logprobs = torch.tensor(ours, dtype=torch.float64, requires_grad=True)
    result = policy_loss(
        logprobs,
        torch.tensor(theirs, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        torch.arange(1000) // 10,
        100,
        Loss(dppo=how),
    )
    result.loss.backward()
    assert 100 < sum(masked) < 500
    assert result.kept.tolist() == [not one for one in masked]
    assert float(result.loss) == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(gradient, abs=1e-6)


def test_clipping_bounds_the_update_and_reports_the_norm_before(base: BaseModel) -> None:
    slot = opened(base)
    seen: list[float] = []
    step = slot.optimizer.step

    def spy() -> None:
        grads = [p.grad for p in slot.parameters.values() if p.grad is not None]
        seen.append(float(torch.stack([g.norm() for g in grads]).norm()))
        step()

    slot.optimizer.step = spy
    metrics = train_step(base, slot, tiny_model.samples(8), StepPlan(1e-3, 64, 1e-3))
    assert metrics["optim/grad_norm"] > 1e-2
    assert seen == [pytest.approx(1e-3, rel=1e-2)]


def test_a_step_that_is_no_number_changes_nothing(base: BaseModel) -> None:
    slot = opened(base)
    train_step(base, slot, tiny_model.samples(8), PLAN)
    name = next(iter(slot.parameters))
    with torch.no_grad():
        slot.parameters[name][0, 0] = float("nan")
    before = slot.files()
    moments = {k: v["exp_avg"].clone() for k, v in slot.optimizer.state.items()}
    rng = slot.rng["cpu"].clone()
    with pytest.raises(ProblemError) as caught:
        train_step(base, slot, tiny_model.samples(8), PLAN)
    assert caught.value.problem.reason == "StepNotFinite"
    assert slot.files() == before
    assert slot.updates == 1
    assert torch.equal(slot.rng["cpu"], rng)
    assert all(torch.equal(v["exp_avg"], moments[k]) for k, v in slot.optimizer.state.items())
    assert all(p.grad is None for p in slot.parameters.values())


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_memory_that_runs_out_is_a_problem_with_advice(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    slot = opened(base)
    before = slot.files()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(base.model, "get_decoder", lambda: fail)
    monkeypatch.setattr(BaseModel, "hidden_states", fail)
    with pytest.raises(ProblemError) as caught:
        train_step(base, slot, tiny_model.samples(8), PLAN)
    assert caught.value.problem.reason == "TrainerOutOfMemory"
    assert "microBatchTokens" in caught.value.problem.message
    assert slot.files() == before


@pytest.mark.parametrize(("earlier", "room"), [(0, 0), (0, 2), (1, 0)])
def test_an_update_that_does_not_fit_is_refused_before_it_moves_anything(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, earlier: int, room: int
) -> None:
    slot, twin = opened(base), opened(base, "twin")
    for name, parameter in twin.parameters.items():
        parameter.data.copy_(slot.parameters[name])
    batch = tiny_model.samples(8)
    for _ in range(earlier):
        train_step(base, slot, batch, PLAN)
        train_step(base, twin, batch, PLAN)

    last = list(slot.parameters.values())[-1]
    taken: list[int] = []

    def allocate(like: torch.Tensor | list[torch.Tensor], *args: object, **options: object) -> torch.Tensor:
        if isinstance(like, list) or like is last:
            taken.append(1)
            if len(taken) > room:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros_like(like, *args, **options)

    zeros_like = torch.zeros_like
    with monkeypatch.context() as full:
        # All that allocates as much as the weights have: memory has room for that many buffers of the last one.
        for name in ("zeros_like", "empty_like", "_foreach_sqrt"):
            full.setattr(torch, name, allocate)
        with pytest.raises(ProblemError) as caught:
            train_step(base, slot, batch, PLAN)
    assert caught.value.problem.reason == "TrainerOutOfMemory"
    assert slot.updates == earlier
    assert slot.files() == twin.files()
    train_step(base, slot, batch, PLAN)
    train_step(base, twin, batch, PLAN)
    assert slot.files() == twin.files()


def test_memory_that_runs_out_in_the_update_is_no_refusal(base: BaseModel) -> None:
    slot = opened(base)
    train_step(base, slot, tiny_model.samples(8), PLAN)

    def fail() -> None:
        next(iter(slot.optimizer.state.values()))["exp_avg"].zero_()
        raise torch.OutOfMemoryError("CUDA out of memory")

    slot.optimizer.step = fail
    # Not ProblemError: the request would be repeated, with other moments.
    with pytest.raises(StepAborted, match="CUDA out of memory"):
        train_step(base, slot, tiny_model.samples(8), PLAN)


def test_mismatch_on_policy_excludes_samples_of_older_versions(base: BaseModel) -> None:
    slot = opened(base)
    batch = tiny_model.samples(16)
    for index, sample in enumerate(batch):
        logp = tiny_model.plain_logprobs(base, sample, TEMPERATURE).tolist()
        old = index % 2 == 0
        sample.policy_version = 6 if old else 7
        sample.logprobs = [logp[i - 1] - old if m else 0.0 for i, m in enumerate(sample.loss_mask)]
    metrics = train_step(base, slot, batch, replace(PLAN, version=7))
    assert metrics["mismatch_kl/on_policy/mean"] < 1e-8
    assert metrics["mismatch_kl/all/mean"] > 0.1
    assert metrics["mismatch_kl/age_1/mean"] == pytest.approx(math.e - 2, rel=1e-3)
    later = train_step(base, slot, batch, replace(PLAN, version=8))
    assert "mismatch_kl/on_policy/mean" not in later
    assert {name for name in later if "/age_" in name} == {"mismatch_kl/age_1/mean", "mismatch_kl/age_2/mean"}
    oldest = train_step(base, slot, batch, replace(PLAN, version=40))
    assert [name for name in oldest if "/age_" in name] == ["mismatch_kl/age_8/mean"]


def test_mismatch_by_age_follows_the_tokens_of_a_sample(base: BaseModel) -> None:
    slot = opened(base)
    batch = tiny_model.samples(16)
    for sample in batch:
        logp = tiny_model.plain_logprobs(base, sample, TEMPERATURE).tolist()
        half = len(sample.token_ids) // 2
        drawn = [i for i, m in enumerate(sample.loss_mask) if m]
        sample.turn_starts = sorted({drawn[0], next(i for i in drawn if i >= half)})
        sample.policy_version, sample.turn_versions = 6, [6 if i < half else 7 for i in sample.turn_starts]
        sample.logprobs = [logp[i - 1] - (i < half) if m else 0.0 for i, m in enumerate(sample.loss_mask)]
    metrics = train_step(base, slot, batch, replace(PLAN, version=7))
    assert metrics["mismatch_kl/on_policy/mean"] < 1e-8
    assert metrics["mismatch_kl/age_1/mean"] == pytest.approx(math.e - 2, rel=1e-3)
