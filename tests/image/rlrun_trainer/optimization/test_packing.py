import hashlib
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from rlrun.api.run_sections.rollouts import Sampling, TrainSampling
from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.optimization.packing import MicroBatch
from rlrun_trainer.optimization.sampling_distribution import History, SamplingDistribution

from tests.support import tiny_model
from tests.support.micro_batches import micro_batches
from tests.support.train_bodies import body_of, read_body


def sample(tokens: int, prompt: int = 1, **changes: Any) -> Sample:
    mask = [i >= prompt for i in range(tokens)]
    values = {
        "token_ids": list(range(tokens)),
        "loss_mask": mask,
        "logprobs": [-1.0 if m else 0.0 for m in mask],
        "advantage": 0.5,
        "policy_version": 0,
    }
    return Sample(**(values | changes))


def mixed_batch(seed: int) -> list[Sample]:
    """Samples of all kinds, with several turns and policies."""
    rng, made = random.Random(seed), []
    for number in range(40):
        ids, mask, starts = list[int](), list[bool](), list[int]()
        for _ in range(rng.randint(1, 4)):
            prompt, answer = rng.randint(1, 9), rng.randint(0 if number % 9 else 1, 30)
            if answer:
                starts.append(len(ids) + prompt)
            mask += [False] * prompt + [True] * answer
            ids += [rng.randrange(40) for _ in range(prompt + answer)]
        logprobs = [-rng.random() if m else 0.0 for m in mask]
        versions = sorted(rng.randint(0, 5) for _ in starts)
        made.append(
            Sample(
                token_ids=ids,
                loss_mask=mask,
                logprobs=logprobs,
                advantage=rng.uniform(-1, 1),
                policy_version=min(versions, default=0),
                turn_starts=starts,
                teacher_logprobs=[2 * value for value in logprobs] if number % 7 == 3 else None,
                loss=SampleLoss.cross_entropy if number % 5 == 2 else SampleLoss.policy,
                turn_versions=versions if len(set(versions)) > 1 else None,
            )
        )
    return made


def digest_of(batches: Sequence[MicroBatch]) -> str:
    found = hashlib.sha256()
    for batch in batches:
        for name, value in sorted(vars(batch).items()):
            if name == "distribution":
                continue
            parts = sorted(vars(value).items()) if isinstance(value, History) else [(name, value)]
            for part, content in parts:
                shown = content.numpy().tobytes() if isinstance(content, torch.Tensor) else repr(content).encode()
                found.update(f"{name} {part} {getattr(content, 'dtype', '')}".encode() + shown)
    return found.hexdigest()[:16]


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({"budget": 64}, "9755d3c9772f67d4"),
        ({"budget": 200}, "8d650e459091972c"),
        ({"budget": 2000, "at_least": 7}, "2f3a0880ebc46f18"),
        ({"budget": 100, "single_row": True}, "7cbfc4b593f8c896"),
        ({"budget": 128, "share_rows": False}, "06b4ed267f2bafe0"),
        ({"budget": 200, "distribution": SamplingDistribution(Sampling(top_p=0.5))}, "e528edd2f3b41df2"),
        ({"budget": 5}, "c547e1a0f715272a"),
    ],
)
def test_micro_batches_are_those_of_release_0_1_0(options: dict[str, Any], digest: str) -> None:
    """The digests were computed by the packing of JSON batches, which built all micro-batches on every process."""
    made = mixed_batch(3)
    assert digest_of(micro_batches(made, **options)) == digest
    assert digest_of(micro_batches(read_body(body_of(made)).samples, **options)) == digest


@pytest.mark.parametrize("single_row", [False, True])
@pytest.mark.parametrize("budget", [20, 64, 1000])
def test_every_trainable_token_is_there_once(budget: int, single_row: bool) -> None:
    made = tiny_model.samples(30, seed=1)
    batches = micro_batches(made, budget, single_row)
    expected = sorted(
        (s.token_ids[i - 1], t, round(s.logprobs[i], 4), round(s.advantage, 4), i - 1)
        for s in made
        for i, t in enumerate(s.token_ids)
        if s.loss_mask[i]
    )
    found = []
    for batch in batches:
        assert batch.input_ids.numel() <= max(budget, 17)
        assert not single_row or len(batch.input_ids) == 1
        before = batch.input_ids.flatten()[batch.predicting].tolist()
        positions = batch.position_ids.flatten()[batch.predicting].tolist()
        found += [
            (b, t, round(lp, 4), round(a, 4), p)
            for b, t, lp, a, p in zip(
                before,
                batch.targets.tolist(),
                batch.engine_logprobs.tolist(),
                batch.advantages.tolist(),
                positions,
                strict=True,
            )
        ]
    assert sorted(found) == expected
    assert sum(b.tokens for b in batches) == sum(len(s.token_ids) for s in made)
    assert sum(b.samples for b in batches) == len(made)


def test_each_token_keeps_the_version_of_its_policy() -> None:
    mixed = sample(5, prompt=2, policy_version=3, turn_starts=[2, 3], turn_versions=[3, 5])
    [batch] = micro_batches([mixed, sample(3, policy_version=4)], 100)
    assert sorted(batch.versions.tolist()) == [3, 4, 4, 5, 5]
    versions = dict(zip(batch.targets.tolist(), batch.versions.tolist(), strict=True))
    assert (versions[3], versions[4]) == (5, 5), "tokens that only the longer sample has"


def test_short_samples_share_a_row_and_little_is_padded() -> None:
    [batch] = micro_batches([sample(4), sample(10), sample(6), sample(3)], 100)
    assert batch.input_ids.shape == (3, 10) or batch.input_ids.shape == (2, 10)
    assert batch.tokens == 23
    batches = micro_batches(tiny_model.samples(200), 256)
    assert sum(b.tokens for b in batches) / sum(b.input_ids.numel() for b in batches) > 0.9


def test_a_sample_longer_than_the_budget_goes_alone() -> None:
    batches = micro_batches([sample(30), sample(5)], 16)
    assert [b.input_ids.shape[1] for b in batches] == [30, 5]


def test_samples_without_trainable_tokens_are_left_out() -> None:
    [batch] = micro_batches([sample(5), sample(5, prompt=5)], 100)
    assert batch.samples == 1


@pytest.mark.parametrize("single_row", [False, True])
def test_packed_equals_unpacked(base: BaseModel, single_row: bool) -> None:
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    base.activate(slot)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.normal_(std=0.1)
        made = tiny_model.samples(20, seed=2)
        alone = {tuple(s.token_ids): tiny_model.plain_logprobs(base, s) for s in made}
        batches = micro_batches(made, 80, single_row)
        assert len(batches) < len(made)
        compared = 0
        for batch in batches:
            moved = batch.to(base.device)
            hidden = base.hidden_states(moved.input_ids, moved.position_ids).flatten(0, 1)
            logp = torch.log_softmax(base.head(hidden).float(), -1).cpu()
            ids, positions = batch.input_ids.flatten().tolist(), batch.position_ids.flatten().tolist()
            starts = [i for i, p in enumerate(positions) if p == 0] + [len(ids)]
            for start, end in itertools.pairwise(starts):
                expected = alone.get(tuple(ids[start:end]))
                if expected is None:
                    continue
                got = logp[start : end - 1].gather(-1, torch.tensor(ids[start + 1 : end])[:, None]).squeeze(-1)
                assert torch.allclose(got, expected, atol=1e-5)
                compared += 1
        assert compared == len(made)


def test_there_are_as_many_micro_batches_as_are_asked_for() -> None:
    made = tiny_model.samples(12)
    assert len(micro_batches(made, 10_000)) == 1
    several = micro_batches(made, 10_000, at_least=5)
    assert len(several) == 5
    assert sum(batch.samples for batch in several) == 12


def test_history_is_made_only_if_it_is_asked_for() -> None:
    bent = SamplingDistribution(Sampling(top_p=0.5))
    [without], [with_history] = micro_batches([sample(5)], 100), micro_batches([sample(5)], 100, distribution=bent)
    assert without.history is None
    assert with_history.history is not None


def test_samples_with_other_sampling_parameters_share_no_micro_batch() -> None:
    warm, narrow = TrainSampling(temperature=1.5), TrainSampling(top_p=0.5)
    made = [sample(5), sample(6, sampling=warm), sample(4, sampling=narrow), sample(3, sampling=warm)]
    batches = micro_batches(made, 1000)
    found = [(batch.distribution.sampling.temperature, batch.tokens, batch.history is None) for batch in batches]
    assert found == [(1.0, 5, True), (1.5, 9, True), (1.0, 4, False)]


def test_tokens_of_demonstrations_come_last() -> None:
    made = [sample(9, loss="cross_entropy"), sample(5), sample(4, loss="cross_entropy"), sample(3, advantage=0.25)]
    [batch] = micro_batches(made, 1000)
    assert batch.policy_tokens == 4 + 2
    assert batch.advantages.tolist() == [0.5] * 4 + [0.25] * 2 + [0.0] * (8 + 3)
    assert batch.engine_logprobs.tolist() == [-1.0] * 6 + [0.0] * 11
    assert batch.sample_of.tolist() == [0] * 4 + [1] * 2 + [2] * 8 + [3] * 3
    before = batch.input_ids.flatten()[batch.predicting]
    assert (batch.targets - before).tolist() == [1] * 17


@pytest.mark.proves("algorithm.name")
def test_every_token_has_its_teachers_log_probability() -> None:
    [batch] = micro_batches(
        [sample(4, prompt=2, teacher_logprobs=[0.0, 0.0, -0.5, -2.0]), sample(3, advantage=0.25)], 1000
    )
    assert batch.teacher_logprobs is not None
    assert batch.teacher_logprobs[:2].tolist() == [-0.5, -2.0]
    assert batch.teacher_logprobs[2:].isnan().all()
    assert batch.advantages.tolist() == [0.0, 0.0, 0.25, 0.25]
    [batch] = micro_batches([sample(3), sample(3, loss="cross_entropy")], 1000)
    assert batch.teacher_logprobs is None
