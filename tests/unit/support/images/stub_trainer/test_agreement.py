"""Agreement of stub trainer and stub engine: an adapter that is not the sample's is noticed."""

import math
from dataclasses import replace

import pytest
from rlrun.protocol.train_batch import Sample

from tests.support.engine_wire import MODEL_FOLDER
from tests.support.images.stub_engine.completion import SamplingParameters, complete
from tests.support.images.stub_engine.language_model import LanguageModel
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer
from tests.support.images.stub_trainer.agreement import Agreement

TOKENIZER = CharacterTokenizer(MODEL_FOLDER)
TEMPERATURE = 0.7


def drawn(weights: str, version: int = 3) -> list[Sample]:
    """Samples whose tokens the stub engine drew with these weights."""
    samples = []
    for seed, text in enumerate(("mira tolu", "abc", "quite long")):
        prompt = TOKENIZER.render([{"role": "user", "content": text}])
        parameters = SamplingParameters(max_tokens=24, temperature=TEMPERATURE, seed=seed)
        made = complete(LanguageModel(TOKENIZER), TOKENIZER, weights, prompt, parameters, 0)
        logprobs = [entry[token] for token, entry in zip(made.token_ids, made.logprobs, strict=True)]
        sample = Sample(
            token_ids=[*prompt, *made.token_ids],
            loss_mask=[False] * len(prompt) + [True] * len(made.token_ids),
            logprobs=[0.0] * len(prompt) + logprobs,
            advantage=1.0,
            policy_version=version,
        )
        samples.append(sample)
    return samples


@pytest.fixture
def agreement() -> Agreement:
    return Agreement(MODEL_FOLDER)


def test_samples_of_their_policy_agree(agreement: Agreement) -> None:
    (found,) = agreement.mismatches(drawn("policy"), {3: "policy"}, TEMPERATURE).values()
    assert len(found) == sum(sum(sample.loss_mask) for sample in drawn("policy"))
    assert max(found) < 1e-12


@pytest.mark.parametrize(("weights", "temperature"), [("another run's", TEMPERATURE), ("policy", 1.0)])
def test_another_adapter_or_temperature_is_a_mismatch(agreement: Agreement, weights: str, temperature: float) -> None:
    (found,) = agreement.mismatches(drawn(weights), {3: "policy"}, temperature).values()
    assert math.fsum(found) / len(found) > 1e-5


def test_versions_of_an_earlier_process_are_left_out(agreement: Agreement) -> None:
    assert agreement.mismatches(drawn("policy", version=2), {3: "policy"}, TEMPERATURE) == {}


def test_each_token_is_compared_with_the_policy_that_sampled_it(agreement: Agreement) -> None:
    first, second = drawn("older", version=2)[0], drawn("newer", version=3)[1]
    start = list(first.loss_mask).index(True)
    joined = Sample(
        token_ids=first.token_ids,
        loss_mask=first.loss_mask,
        logprobs=first.logprobs,
        advantage=1.0,
        policy_version=2,
        turn_starts=[start],
        turn_versions=[2],
    )
    policies = {2: "older", 3: "newer"}
    found = agreement.mismatches([joined, second], policies, TEMPERATURE)
    assert found.keys() == {2, 3}
    assert max(max(values) for values in found.values()) < 1e-12
    wrong = replace(joined, turn_starts=[start, start + 5], turn_versions=[3, 2])
    found = agreement.mismatches([wrong], policies, TEMPERATURE)
    assert len(found[3]) == 5
    assert max(found[2]) < 1e-12 < math.fsum(found[3])
