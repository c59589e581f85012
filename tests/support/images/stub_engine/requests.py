"""Bodies of requests. Fields that the stub does not apply are accepted and ignored."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from tests.support.images.stub_engine.completion import SamplingParameters
from tests.support.images.stub_engine.errors import EngineError


def _not_all_null(message: dict[str, Any]) -> dict[str, Any]:
    if all(message.get(name, "") is None for name in ("content", "tool_calls")):
        raise ValueError("content and tool_calls are null")
    return message


Message = Annotated[dict[str, Any], AfterValidator(_not_all_null)]
"""Message of a chat. Content of null is one without text, but not beside calls of null."""
Prompt = list[int] | list[list[int]] | str | list[str]


class StreamOptions(BaseModel):
    """What a stream has beside the tokens."""

    include_usage: bool = False


class SamplingRequest(BaseModel):
    """Fields of both kinds of completions."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = Field(1, ge=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None

    @property
    def token_limit(self) -> int | None:
        """Number of tokens that the client allows, None without a limit."""
        return self.max_tokens

    def parameters(self, prompt: Sequence[int], max_model_len: int) -> SamplingParameters:
        """Return the sampling parameters for a prompt, with as many tokens as it leaves. Raises EngineError."""
        length, left = len(prompt), max_model_len - len(prompt)
        if left < 0:
            message = (
                f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
                f"{'at least ' * (left == -1)}{length} input tokens, which exceeds this limit even without any output "
                "tokens. Please reduce the length of the input prompt."
            )
            raise EngineError.invalid(message, "input_tokens", length)
        limit = left if self.token_limit is None else min(self.token_limit, left)
        if limit < 1:
            raise EngineError.invalid(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
        temperature = 1.0 if self.temperature is None else self.temperature
        if temperature < 0:
            message = f"temperature must be non-negative, got {temperature}."
            raise EngineError.invalid(message, "temperature", temperature)
        if self.min_tokens > limit:
            message = f"min_tokens must be less than or equal to max_tokens={limit}, got {self.min_tokens}."
            raise EngineError(400, "BadRequestError", message)
        return SamplingParameters(
            max_tokens=limit,
            temperature=temperature,
            seed=self.seed,
            min_tokens=self.min_tokens,
            stop=tuple([self.stop] if isinstance(self.stop, str) else self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop=self.include_stop_str_in_output,
            ignore_end=self.ignore_eos,
            skip_special=self.skip_special_tokens,
            allowed=frozenset(self.allowed_token_ids or ()),
        )


class ChatRequest(SamplingRequest):
    """Body of `/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def prompt_token_ids(self) -> list[int] | None:
        """Tokens of the prompt, None if the messages are rendered."""
        return (self.kv_transfer_params or {}).get("prompt_token_ids")

    @property
    def token_limit(self) -> int | None:
        """Number of tokens that the client allows, None without a limit."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TextRequest(SamplingRequest):
    """Body of `/v1/completions`."""

    prompt: Prompt
    max_tokens: int | None = 16
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None


class TokenizeRequest(BaseModel):
    """Body of `/tokenize`: a text or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = False


class LoadAdapterRequest(BaseModel):
    """Body of `/v1/load_lora_adapter`."""

    lora_name: str
    lora_path: str


class UnloadAdapterRequest(BaseModel):
    """Body of `/v1/unload_lora_adapter`."""

    lora_name: str
