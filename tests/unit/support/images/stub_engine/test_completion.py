"""Draws of the stub engine: equal for equal arguments, different where tests need a difference."""

import math
from dataclasses import replace

import pytest

from tests.support.engine_wire import END, LETTER, MODEL_FOLDER, OTHER
from tests.support.images.stub_engine.completion import LOWEST, Completion, SamplingParameters, complete
from tests.support.images.stub_engine.language_model import LanguageModel
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer(MODEL_FOLDER)
MODEL = LanguageModel(TOKENIZER)
PROMPT = TOKENIZER.render([{"role": "user", "content": "mira tolu"}])
PARAMETERS = SamplingParameters(max_tokens=24, seed=1)


def drawn(parameters: SamplingParameters = PARAMETERS, weights: str = "base", index: int = 0) -> Completion:
    return complete(MODEL, TOKENIZER, weights, PROMPT, parameters, index)


def test_draws_follow_from_seed_weights_prompt_and_choice() -> None:
    first = drawn()
    assert drawn() == first
    others = [drawn(replace(PARAMETERS, seed=2)), drawn(weights="policy"), drawn(index=1)]
    assert all(other.token_ids != first.token_ids for other in others)


def test_a_request_without_a_seed_is_another_one_each_time() -> None:
    assert len({tuple(drawn(replace(PARAMETERS, seed=None)).token_ids) for _ in range(8)}) > 1


def test_greedy_answers_ignore_the_seed_and_differ_between_policies() -> None:
    greedy = replace(PARAMETERS, temperature=0.0)
    assert drawn(greedy) == drawn(replace(greedy, seed=2))
    assert {drawn(greedy, weights=f"policy {number}").text for number in range(8)} == {"mira tolu", "ulot arim"}


def test_rewards_of_a_group_differ() -> None:
    """A run filters groups whose rewards are all equal."""
    texts = {drawn(replace(PARAMETERS, seed=seed)).text for seed in range(8)}
    assert len(texts) > 2
    assert {"mira tolu", "ulot arim"} & texts


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(temperature: float) -> None:
    made = drawn(replace(PARAMETERS, temperature=temperature, allowed=frozenset({END, LETTER, OTHER}), min_tokens=1))
    for position, (token, logprobs) in enumerate(zip(made.token_ids, made.logprobs, strict=True)):
        assert math.fsum(math.exp(value) for value in logprobs.values()) == pytest.approx(1)
        assert LOWEST < logprobs[token] <= 0
        assert (logprobs[END] == LOWEST) == (position == 0), "minTokens forbids the end"


def test_a_stop_text_cuts_the_answer() -> None:
    parameters = replace(PARAMETERS, allowed=frozenset({LETTER}), max_tokens=5, stop=("bb",))
    made = drawn(parameters)
    assert (made.text, made.token_ids, made.finish_reason, made.stop_reason) == ("", [LETTER] * 2, "stop", "bb")
    assert drawn(replace(parameters, include_stop=True)).text == "bb"
    assert drawn(replace(parameters, min_tokens=3)).token_ids == [LETTER] * 3
