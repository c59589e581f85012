"""Reads samples from engines' responses, and writes them as a SampleResponse of the Tinker API."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.api.base.received import InputInvalid, InputLimits, read_fast

from rlrun_tinker.sample_requests import ValidatedSampleRequest
from rlrun_tinker.wire import bytes_field, integer_field

MAX_RESPONSE = 32 * 1024**2
"""Maximum size of an engine's response in bytes."""
LIMITS = InputLimits(size=MAX_RESPONSE, values=1_500_000)
NO_TOKEN, NO_LOGPROB = 0, -99999.0
"""Token id and log-probability that pad a row with fewer tokens than the client requested."""
TOKEN_PREFIX = "token_id:"
STOPPED, AT_LIMIT = 0, 1
"""Values of `stop_reason`: the sample ended at a stop condition, or at the maximum number of tokens."""
FINISHES = {"stop": STOPPED, "length": AT_LIMIT}

TopTokens = Sequence[Sequence[tuple[int, float]]]
"""The most likely tokens of each position with their log-probabilities."""


class EngineResponseInvalid(ValueError):
    """Raised for a response that lacks valid tokens or log-probabilities. The message does not quote the response."""


@dataclass(frozen=True)
class SampledSequence:
    """One sampled sequence, as fields of a SampleResponse."""

    encoded: bytes
    """Encoded SampledSequence of the Tinker API."""
    prompt: bytes = b""
    """Encoded fields of a SampleResponse with the log-probabilities of the prompt."""
    cached: int = 0
    """Number of prompt tokens that the engine found in its cache."""


def read_sequence(data: bytes, request: ValidatedSampleRequest, number: int) -> SampledSequence:
    """Read sequence `number` of a request from an engine's response. Raises EngineResponseInvalid."""
    try:
        response = read_fast(data, "the response", LIMITS, allows_nan=True)
        choice = response["choices"][0]
        # Raises KeyError for a request that the engine has aborted.
        reason = FINISHES[choice["finish_reason"]]
        tokens, logprobs = array("i", choice["token_ids"]), array("f", choice["logprobs"]["token_logprobs"])
        if len(tokens) != len(logprobs) or not tokens:
            raise ValueError("numbers of tokens and log-probabilities differ")
        parts = [
            integer_field(1, reason),
            bytes_field(2, tokens.tobytes()),
            bytes_field(3, logprobs.tobytes()),
        ]
        if request.top_sample:
            rows = [_sampled_row(row) for row in choice["logprobs"]["top_logprobs"]]
            parts.append(bytes_field(4, _top_message(rows, request.top_sample)))
        prompt = _prompt_fields(choice, request) if request.asks_for_prompt(number) else b""
        return SampledSequence(b"".join(parts), prompt, _cached(response.get("usage")))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError, InputInvalid) as error:
        kind = type(error).__name__
    raise EngineResponseInvalid(f"the engine's response has no valid tokens and log-probabilities ({kind})")


def encode_response(sequences: Sequence[SampledSequence]) -> bytes:
    """Encode sequences as a SampleResponse."""
    parts = [bytes_field(1, sequence.encoded) for sequence in sequences]
    first = sequences[0]
    return b"".join([*parts, first.prompt, integer_field(4, first.cached) if first.cached else b""])


def _prompt_fields(choice: dict[str, Any], request: ValidatedSampleRequest) -> bytes:
    entries: list[Mapping[str, Any] | None] = choice["prompt_logprobs"]
    tokens: list[int] = choice["prompt_token_ids"]
    if len(entries) != request.prompt_length or len(tokens) != request.prompt_length:
        raise ValueError("the length of the prompt differs")
    first = request.prompt_length - request.scored
    fields = b""
    if request.has_prompt_logprobs:
        logprobs = array("f", [math.nan]) * request.prompt_length
        for at in range(first, request.prompt_length):
            entry = entries[at]
            if entry:
                logprobs[at] = entry[str(tokens[at])]["logprob"]
        fields += bytes_field(2, logprobs.tobytes())
    if request.top_prompt:
        rows = [_prompt_row(entry) if at >= first else [] for at, entry in enumerate(entries)]
        fields += bytes_field(3, _top_message(rows, request.top_prompt))
    return fields


def _prompt_row(entry: Mapping[str, Any] | None) -> list[tuple[int, float]]:
    return [(int(token), float(scores["logprob"])) for token, scores in (entry or {}).items()]


def _sampled_row(row: Mapping[str, float]) -> list[tuple[int, float]]:
    return [(int(token.removeprefix(TOKEN_PREFIX)), float(logprob)) for token, logprob in row.items()]


def _top_message(rows: TopTokens, count: int) -> bytes:
    """Return a TopkLogprobs with the `count` most likely tokens of each row. An engine's row may also contain the drawn
    token.
    """
    tokens, logprobs = array("i"), array("f")
    for row in rows:
        best = sorted(row, key=lambda pair: -pair[1])[:count]
        best += [(NO_TOKEN, NO_LOGPROB)] * (count - len(best))
        tokens.extend(token for token, _ in best)
        logprobs.extend(logprob for _, logprob in best)
    matrices = bytes_field(1, tokens.tobytes()) + bytes_field(2, logprobs.tobytes())
    return matrices + integer_field(3, count) + integer_field(4, len(rows))


def _cached(usage: Any) -> int:
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    found = details.get("cached_tokens") if isinstance(details, dict) else None
    return found if type(found) is int and found > 0 else 0
