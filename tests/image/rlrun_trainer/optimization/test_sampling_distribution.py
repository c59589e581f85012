"""Does the trainer give a token the probability that it was drawn with? The engine here is a loop in plain Python."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rlrun.api.run_sections.rollouts import Sampling, TrainSampling
from rlrun.protocol.train_batch import Sample
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.optimization import sampling_distribution as distribution_module
from rlrun_trainer.optimization.sampling_distribution import (
    HistoryBuilder,
    SamplingDistribution,
    stop_tokens,
    token_logprobs,
)
from rlrun_trainer.optimization.step import StepPlan, train_step
from tokenizers import Tokenizer, models
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tests.support import tiny_model
from tests.support.micro_batches import micro_batches

STOPS = (2, 5)
WAYS = {
    "temperature": Sampling(temperature=0.7),
    "top_p": Sampling(top_p=0.6),
    "min_p": Sampling(temperature=1.3, min_p=0.3),
    "repetition_penalty": Sampling(temperature=0.8, repetition_penalty=1.4),
    "rewarded repetition": Sampling(repetition_penalty=0.7),
    "min_tokens": Sampling(temperature=1.2, min_tokens=4),
    "all": Sampling(temperature=0.9, top_p=0.8, min_p=0.05, repetition_penalty=1.3, min_tokens=3),
}


def engine(logits: list[float], before: list[int], drawn: int, how: Sampling) -> list[float]:
    """Probabilities of the next token after the tokens `before`, of which the present turn has `drawn`."""
    values = list(logits)
    if how.min_tokens is not None and drawn < how.min_tokens:
        for token in STOPS:
            values[token] = -math.inf
    for token in set(before):
        penalty = how.repetition_penalty or 1.0
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    values = [value / how.temperature for value in values]
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    if how.min_p is not None:
        weights = [weight if weight >= how.min_p else 0.0 for weight in weights]
    total = sum(weights)
    if how.top_p is not None:
        kept, mass = set(), 0.0
        for token in sorted(range(len(weights)), key=lambda t: -weights[t]):
            if mass >= how.top_p:
                break
            kept.add(token)
            mass += weights[token] / total
        weights = [weight if token in kept else 0.0 for token, weight in enumerate(weights)]
        total = sum(weights)
    return [weight / total for weight in weights]


def opened(base: BaseModel) -> AdapterSlot:
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 1)
    base.activate(slot)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.normal_(std=0.05)
    return slot


def rollout(base: BaseModel, how: Sampling, seed: int, *, continued: bool = False) -> tuple[Sample, list[float]]:
    """Two turns drawn by the engine, with tokens of an environment before each, and the entropy at each draw.
    `continued`: the second turn has none before it.
    """
    random_ = random.Random(seed)
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    entropies: list[float] = []
    starts: list[int] = []
    for turn in range(2):
        count = 0 if continued and turn else random_.randint(1, 4)
        given = [random_.randrange(tiny_model.VOCABULARY) for _ in range(count)]
        ids, mask, logprobs = ids + given, mask + [False] * len(given), logprobs + [0.0] * len(given)
        starts.append(len(ids))
        for drawn in range(random_.randint(3, 7)):
            with torch.no_grad():
                logits = base.model(input_ids=torch.tensor([ids], device=base.device)).logits[0, -1].tolist()
            p = engine(logits, ids, drawn, how)
            [token] = random_.choices(range(len(p)), weights=p)
            entropies.append(-sum(q * math.log(q) for q in p if q))
            ids, mask, logprobs = [*ids, token], [*mask, True], [*logprobs, math.log(p[token])]
    sample = Sample(
        token_ids=ids,
        loss_mask=mask,
        logprobs=logprobs,
        turn_starts=starts,
        advantage=random_.uniform(-1, 1),
        policy_version=0,
    )
    return sample, entropies


def plan(how: Sampling) -> StepPlan:
    return StepPlan(1e-2, 64, 1e9, distribution=SamplingDistribution(how, STOPS))


@pytest.mark.proves(
    "sampling.temperature", "sampling.topP", "sampling.minP", "sampling.repetitionPenalty", "sampling.minTokens"
)
@pytest.mark.parametrize("way", WAYS)
def test_tokens_drawn_with_the_runs_sampling_settings_have_no_mismatch(
    base: BaseModel, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = WAYS[way]
    slot = opened(base)
    drawn = [rollout(base, how, seed) for seed in range(10)]
    batch = [sample for sample, _ in drawn]
    # Chunks of 5 tokens: a history is cut where the logits are.
    monkeypatch.setattr("rlrun_trainer.optimization.objective.chunk_tokens", lambda *_: 5)
    metrics = train_step(base, slot, batch, plan(how))
    assert metrics["batch/micro_batches"] > 2
    assert metrics["mismatch_kl/all/max"] < 1e-9
    assert metrics["importance_ratio/max"] == pytest.approx(1, abs=1e-4)
    entropies = [entropy for _, several in drawn for entropy in several]
    assert metrics["entropy/all/mean"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)


@pytest.mark.parametrize("single_row", [False, True])
def test_a_step_has_samples_of_environments_with_their_own_sampling(base: BaseModel, single_row: bool) -> None:
    run = WAYS["repetition_penalty"]
    slot, base.single_row = opened(base), single_row
    batch = [rollout(base, run, seed)[0] for seed in range(3)]
    for own in (TrainSampling(temperature=1.5), TrainSampling(top_p=0.6), TrainSampling(min_p=0.3)):
        drawn = [rollout(base, own.apply_to(run), seed)[0] for seed in range(3, 6)]
        batch += [replace(sample, sampling=own) for sample in drawn]
    random.Random(1).shuffle(batch)
    forgotten = [replace(sample, sampling=None) for sample in batch]
    assert train_step(base, slot, forgotten, replace(plan(run), learning_rate=0.0))["mismatch_kl/all/max"] > 1e-4
    metrics = train_step(base, slot, batch, plan(run))
    assert metrics["mismatch_kl/all/max"] < 1e-9
    assert metrics["batch/samples"] == 12


@pytest.mark.parametrize("changed", ["top_p", "min_p", "repetition_penalty", "min_tokens"])
def test_omitting_a_sampling_setting_causes_a_mismatch(base: BaseModel, changed: str) -> None:
    """The test above would notice if one of them were forgotten."""
    slot = opened(base)
    how = WAYS["all"]
    batch = [rollout(base, how, seed)[0] for seed in range(10)]
    metrics = train_step(base, slot, batch, plan(how.model_copy(update={changed: None})))
    assert metrics["mismatch_kl/all/max"] > 1e-4


@pytest.mark.parametrize("single_row", [False, True])
def test_gradient_is_that_of_the_bent_distribution(base: BaseModel, single_row: bool) -> None:
    slot = opened(base)
    how = WAYS["all"]
    parameters = list(slot.parameters.values())
    batch = [rollout(base, how, seed)[0] for seed in range(6)]
    wanted = torch.zeros(())
    for sample in batch:
        logits = base.model(input_ids=torch.tensor([sample.token_ids], device=base.device)).logits[0].cpu()
        turn = 0
        for i, (token, drawn) in enumerate(zip(sample.token_ids, sample.loss_mask, strict=True)):
            turn = turn + 1 if drawn else 0
            if drawn:
                before = sample.token_ids[:i]
                # As p = exp(s_t) / sum over possible v of exp(s_v), with s written down for each v.
                p = engine(logits[i - 1].tolist(), before, turn - 1, how)
                scores = []
                for v, value in enumerate(logits[i - 1]):
                    penalty = how.repetition_penalty if v in before else 1.0
                    assert penalty is not None
                    scores.append((value / penalty if value > 0 else value * penalty) / how.temperature)
                possible = torch.stack([score for score, q in zip(scores, p, strict=True) if q])
                wanted = wanted + (scores[token] - possible.logsumexp(0)) * sample.advantage
    gradients = torch.autograd.grad(wanted, parameters)
    got = torch.zeros(())
    for packed in micro_batches(batch, 60, single_row, distribution=SamplingDistribution(how, STOPS)):
        micro = packed.to(base.device)
        hidden = base.hidden_states(micro.input_ids, micro.position_ids).flatten(0, 1)[micro.predicting]
        logp, _ = token_logprobs(hidden, micro.targets, base.head, micro.distribution, 7, micro.history)
        got = got + (logp * micro.advantages).sum()
    assert float(got.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    for ours, theirs in zip(torch.autograd.grad(got, parameters), gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-3)


def test_a_drawn_token_is_always_possible() -> None:
    hidden = torch.tensor([[0.0, 1.0, 9.0], [0.0, 1.0, 9.0]], requires_grad=True)
    past = HistoryBuilder()
    past.add(np.array([1, 0, 2]), np.array([1, 2]), np.array([1]))
    how = SamplingDistribution(Sampling(top_p=0.1, min_tokens=2), (0,))
    logp, _ = token_logprobs(hidden, torch.tensor([0, 2]), lambda h: h, how, 10, past.history())
    # Token 0 lies outside of the nucleus {2} and is forbidden besides: it is taken into both.
    assert logp.tolist() == pytest.approx([-math.log(1 + math.exp(9)), 0.0])
    logp.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_neutral_sampling_settings_add_no_computation(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = opened(base)
    sizes: list[torch.Size] = []
    head = base.head

    def spy(h: torch.Tensor) -> torch.Tensor:
        sizes.append(h.shape)
        return head(h)

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(BaseModel, "head", property(lambda _: spy))
    monkeypatch.setattr(distribution_module, "_bend", never)
    monkeypatch.setattr(HistoryBuilder, "add", never)
    neutral = Sampling(temperature=0.7, top_p=1.0, min_p=0.0, repetition_penalty=1.0, min_tokens=0)
    metrics = train_step(base, slot, tiny_model.samples(12), plan(neutral))
    # One token more per micro-batch tells whether the head itself is trained.
    assert len(sizes) == 2 * metrics["batch/micro_batches"]
    assert sum(shape[0] for shape in sizes) == metrics["batch/trainable_tokens"] + metrics["batch/micro_batches"]


def test_history_counts_turns_and_first_appearances() -> None:
    past = HistoryBuilder()
    nothing = np.zeros(0, np.int64)
    past.add(np.array([7]), nothing, nothing)
    past.add(np.array([4, 4, 9, 4, 3, 9, 1]), np.array([2, 3, 5, 6]), np.array([2, 5]))
    history = past.history()
    assert history.drawn.tolist() == [0, 1, 0, 1]
    rows, tokens = history.seen_tokens()
    seen = [sorted(tokens[rows == row].tolist()) for row in range(4)]
    assert seen == [[4], [4, 9], [3, 4, 9], [3, 4, 9]]
    assert history.rows(2, 4).drawn.tolist() == [0, 1]
    assert len(history.rows(2, 4).seen_tokens()[0]) == 6


def test_stop_tokens_are_those_of_tokenizer_and_generation_config(tmp_path: Path) -> None:
    folder = tiny_model.save_model(tmp_path / "model")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    model = tiny_model.load(folder).model
    model.generation_config = GenerationConfig()
    assert stop_tokens(model) == ()
    model.generation_config = GenerationConfig(eos_token_id=[7, 5])
    assert stop_tokens(model) == (5, 7)
    other = tiny_model.save_model(tmp_path / "other")
    words = Tokenizer(models.WordLevel({"a": 0, "<end>": 3}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(other)
    GenerationConfig(eos_token_id=5).save_pretrained(other)
    assert stop_tokens(tiny_model.load(other).model) == (3, 5)


def test_a_turn_without_added_tokens_before_it_is_counted_from_its_first_token() -> None:
    past = HistoryBuilder()
    past.add(np.array([4, 5, 6, 7, 8, 9]), np.array([1, 2, 3, 4, 5]), np.array([1, 3, 4]))
    past.add(np.array([4, 5, 6]), np.array([1, 2]), np.zeros(0, np.int64))
    assert past.history().drawn.tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_minimum_of_a_turn_that_follows_another_one_directly_is_applied(base: BaseModel) -> None:
    """Without the boundary, the second turn would be past its minimum."""
    slot = opened(base)
    how = WAYS["all"]
    batch = [rollout(base, how, seed, continued=True)[0] for seed in range(6)]
    metrics = train_step(base, slot, batch, plan(how))
    assert metrics["mismatch_kl/all/max"] < 1e-9
    merged = [replace(sample, turn_starts=[]) for sample in batch]
    assert train_step(base, slot, merged, plan(how))["mismatch_kl/all/max"] > 1e-4
