"""Sampling of one completion. Pure: the same arguments give the same tokens, in every process."""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.images.stub_engine.language_model import LanguageModel
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

LOWEST = -9999.0
"""Log-probability that vLLM reports for a token that was not allowed."""


@dataclass(frozen=True)
class SamplingParameters:
    """Parameters that the stub applies. `top_p`, `top_k`, `min_p` and penalties have no effect."""

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_end: bool = False
    skip_special: bool = True
    allowed: frozenset[int] = frozenset()
    """Token ids that may be drawn. Empty: all."""


@dataclass
class Completion:
    """Tokens of one choice. `logprobs` has the log-probability of every token id at each position."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    stop_reason: int | str | None = None


def complete(
    model: LanguageModel,
    tokenizer: CharacterTokenizer,
    weights: str,
    prompt: Sequence[int],
    parameters: SamplingParameters,
    index: int,
) -> Completion:
    """Return choice `index` of a request. `weights`: digest of the policy's weights."""
    seed = random.getrandbits(64) if parameters.seed is None else parameters.seed
    key = hashlib.blake2b(f"{seed + index}/{weights}/{list(prompt)}".encode()).digest()
    draws = random.Random(key)
    made = Completion()
    while len(made.token_ids) < parameters.max_tokens:
        logprobs = distribution(model.next_token(weights, [*prompt, *made.token_ids]), tokenizer, parameters, made)
        if parameters.temperature == 0:
            token = max(logprobs, key=logprobs.__getitem__)
        else:
            (token,) = draws.choices(list(logprobs), [math.exp(value) for value in logprobs.values()])
        made.token_ids.append(token)
        made.logprobs.append(logprobs)
        made.text = tokenizer.decode(made.token_ids, skip_special=parameters.skip_special)
        if _ended(made, token, tokenizer, parameters):
            break
    return made


def distribution(
    found: dict[int, float], tokenizer: CharacterTokenizer, parameters: SamplingParameters, made: Completion
) -> dict[int, float]:
    """Return log-probabilities under the request's parameters, which add up to 1."""
    banned: set[int] = set()
    if len(made.token_ids) < parameters.min_tokens:
        banned = {tokenizer.end, *parameters.stop_token_ids}
    if parameters.allowed:
        banned |= found.keys() - parameters.allowed
    power = 1 / (parameters.temperature or 1.0)
    weights = {token: 0.0 if token in banned else value**power for token, value in found.items()}
    total = math.log(sum(weights.values()))
    return {token: math.log(value) - total if value else LOWEST for token, value in weights.items()}


def _ended(made: Completion, token: int, tokenizer: CharacterTokenizer, parameters: SamplingParameters) -> bool:
    """Return whether the completion ends with its last token, and note why. Cut the text at a stop string."""
    ends = token == tokenizer.end and not parameters.ignore_end
    if ends or token in parameters.stop_token_ids:
        made.finish_reason, made.stop_reason = "stop", None if ends else token
        if not parameters.include_stop:
            made.text = tokenizer.decode(made.token_ids[:-1], skip_special=parameters.skip_special)
        return True
    if len(made.token_ids) < parameters.min_tokens:
        return False
    for stop in parameters.stop:
        at = made.text.find(stop)
        if at >= 0:
            made.text = made.text[: at + len(stop) * parameters.include_stop]
            made.finish_reason, made.stop_reason = "stop", stop
            return True
    return False
