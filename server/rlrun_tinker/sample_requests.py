"""Requests for samples: parses their bodies in the Tinker API, and converts them to requests to engines."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic_core import to_json
from rlrun.api.base.names import Text
from rlrun.api.base.received import BODY, InputInvalid, InputLimits, parse

from rlrun_tinker.requests import OfSession, TinkerRequest

MAX_SAMPLE_BODY = 4 * 1024**2
"""Maximum size of a request for samples in bytes, sufficient for half a million token ids."""
MAX_SAMPLES = 1024
"""Maximum number of samples of a request."""
MAX_STOPS = 64
MAX_TOP = 20
"""Maximum number of most likely tokens per position, the default of vLLM's `--max-logprobs`."""
MAX_SCORES = 131_072
"""Maximum number of prompt log-probabilities in one request. Each takes about 70 bytes in an engine's response, and ten
times as much memory when the response is parsed.
"""
MAX_SESSIONS = 100_000
NEUTRAL_FIELDS: dict[str, Any] = {
    "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip
"""Neutral values of engine fields that change the distribution and that the Tinker API lacks. All fields are sent,
because the engine's defaults come from the model's generation_config.json.
"""

Token = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[str, Field(min_length=1, max_length=1024)]


class CreateSamplingSession(OfSession):
    """Body of create_sampling_session."""

    sampling_session_seq_id: int = Field(ge=0, lt=MAX_SESSIONS)
    base_model: Text | None = None
    model_path: Text | None = None


class Chunk(TinkerRequest):
    """Part of a prompt."""

    type: Text = "encoded_text"
    tokens: Annotated[list[Token], Field(max_length=MAX_SAMPLE_BODY // 2)] | None = None


class Prompt(TinkerRequest):
    """Prompt of a request."""

    chunks: list[Chunk] = Field(max_length=4096)


class SamplingParams(TinkerRequest):
    """Parameters for drawing tokens and ending a sample."""

    max_tokens: int | None = Field(default=None, ge=1, le=2**24)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[list[Token] | list[Stop], Field(max_length=MAX_STOPS)] | None = None
    """Texts or token ids that end a sample. If None, the model's end-of-sequence token ends it. If empty, a sample ends
    only after `max_tokens`.
    """
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False)
    top_k: int = Field(default=-1, ge=-1, lt=2**31)
    top_p: float = Field(default=1.0, gt=0, le=1)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a request to an engine."""
        fields: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(self.top_k, 0),
        }
        match self.stop:
            case None:
                pass
            case []:
                fields["ignore_eos"] = True
            case [int(), *_]:
                fields["stop_token_ids"] = self.stop
            case stop:
                fields["stop"] = stop
        return fields


class SampleRequest(TinkerRequest):
    """Body of asample."""

    wire_limits: ClassVar[InputLimits] = InputLimits(size=MAX_SAMPLE_BODY, values=1_000_000)

    sampling_session_id: Text | None = None
    num_samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    prompt: Prompt
    sampling_params: SamplingParams = Field(default_factory=SamplingParams)
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=MAX_TOP)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=MAX_TOP)
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    record_stability_info: bool | None = None


@dataclass(frozen=True)
class ValidatedSampleRequest:
    """Validated request for samples."""

    sampler: str
    """Id of the sampler, as text."""
    prompt: bytes
    """Token ids of the prompt in JSON."""
    prompt_length: int
    count: int
    """Number of samples."""
    seed: int | None
    has_prompt_logprobs: bool
    top_prompt: int
    top_sample: int
    scored: int
    """Number of tokens at the end of the prompt that have log-probabilities in the response."""
    fields: bytes
    """Other fields of the engine's requests in JSON, without the braces."""

    def body(self, number: int, model: str) -> list[bytes]:
        """Return the body of the request to the engine for sample `number` from `model`, in parts."""
        fields: dict[str, Any] = {"model": model}
        if self.seed is not None:
            fields["seed"] = sample_seed(self.seed, number)
        if self.asks_for_prompt(number):
            fields["prompt_logprobs"] = self.top_prompt
        return [to_json(fields)[:-1], b",", self.fields, b',"prompt":', self.prompt, b"}"]

    def asks_for_prompt(self, number: int) -> bool:
        """Return whether the response for this sample must contain the prompt's log-probabilities. Only the first
        sample's response does.
        """
        return number == 0 and (self.has_prompt_logprobs or self.top_prompt > 0)


async def in_parts(parts: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body without copying them."""
    for part in parts:
        yield part


def sample_seed(seed: int, number: int) -> int:
    """Return the engine's seed for a sample. Seeds differ between the samples of a request, and between similar values
    of `seed`.
    """
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def read_sample_request(body: bytes) -> ValidatedSampleRequest:
    """Parse and validate the body of a request to the Tinker API's /asample. Raises InputInvalid."""
    request = parse(SampleRequest, body)
    _check_supported(request)
    tokens: list[int] = []
    for chunk in request.prompt.chunks:
        if chunk.type != "encoded_text" or chunk.tokens is None:
            message = f"has a chunk without text tokens (type {chunk.type[:64]!r}). This server samples from text only."
            raise InputInvalid("`prompt`", message)
        tokens += chunk.tokens
    if not tokens:
        raise InputInvalid("`prompt`", "has no tokens.")
    scored = request.prompt_logprobs_last_n or len(tokens)
    if scored > len(tokens):
        raise InputInvalid("`prompt_logprobs_last_n`", f"is larger than the prompt, which has {len(tokens)} tokens.")
    has_prompt_logprobs = bool(request.prompt_logprobs)
    top = request.topk_prompt_logprobs
    if (has_prompt_logprobs or top) and len(tokens) * (top + 1) > MAX_SCORES:
        message = (
            f"asks for too many log-probabilities: {len(tokens)} prompt tokens times {top + 1} is more than "
            f"{MAX_SCORES}. Shorten the prompt, or reduce topk_prompt_logprobs."
        )
        raise InputInvalid(BODY, message)
    params = request.sampling_params
    fields = NEUTRAL_FIELDS | params.to_fields()
    fields |= {
        "n": 1,
        "stream": False,
        "logprobs": request.topk_sample_logprobs,
        "return_token_ids": True,
        # A text of `stop` may have special tokens.
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    if request.topk_sample_logprobs:
        # Texts of several tokens may be equal.
        fields["return_tokens_as_token_ids"] = True
    return ValidatedSampleRequest(
        sampler=request.sampling_session_id or "",
        prompt=to_json(tokens),
        prompt_length=len(tokens),
        count=request.num_samples,
        seed=params.seed,
        has_prompt_logprobs=has_prompt_logprobs,
        top_prompt=top,
        top_sample=request.topk_sample_logprobs,
        scored=scored,
        fields=to_json(fields)[1:-1],
    )


def _check_supported(request: SampleRequest) -> None:
    if request.sampling_session_id is None:
        message = "is missing. Create a sampling client with tinker 0.38 or later."
        raise InputInvalid("`sampling_session_id`", message)
    if request.target_prompt_logprobs is not None:
        message = "is not supported. Use topk_prompt_logprobs, or forward() of a training client."
        raise InputInvalid("`target_prompt_logprobs`", message)
    if request.prompt_alt_tokens_k:
        raise InputInvalid("`prompt_alt_tokens_k`", "is not supported. Set it to 0.")
    if request.record_stability_info:
        message = "is not supported. Train with loss_fn='importance_sampling' instead of stable_reinforce."
        raise InputInvalid("`record_stability_info`", message)
