"""Receives request bodies within limits, sets fields in them without parsing, and checks prompts."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping

from rlrun_engine_access.asgi import Disconnected, Message, Receive, Rejection, header_values

MAX_BUFFERED = 512 * 1024**2
"""Maximum total size in bytes of the bodies of all requests that wait or are in vLLM."""
MAX_BUFFERED_PER_RUN = 128 * 1024**2
"""Maximum total size in bytes of the bodies of one run, so that one run alone cannot fill MAX_BUFFERED."""
RECEIVE_SECONDS = 60.0
"""Time limit in seconds for a client to send its body, the same as in the gateway."""
MAX_PROMPT_LOGPROBS = 128 * 1024
"""Maximum number of likely tokens for a whole prompt. vLLM creates an object for each in the process that serves all
runs.
"""
NOT_JSON = "The body must be a JSON object in UTF-8"
_BLANK = b" \t\r\n"
_EMPTY = re.compile(rb"\{[ \t\r\n]*\}")


class BodyBuffer:
    """Bodies of requests that have not ended."""

    def __init__(self, max_body: int) -> None:
        """`max_body` is the maximum size of a body in bytes."""
        self._max_body = max_body
        self._sizes: Counter[str] = Counter()

    async def receive(self, uid: str, scope: Message, receive: Receive) -> bytearray:
        """Receive the body of a request of the run `uid`, and count it until `release`.

        Raises Rejection (408, 413, 415, 429) and Disconnected.
        """
        if any(value.lower() != b"identity" for value in header_values(scope, b"content-encoding")):
            raise Rejection(415, "Bodies with a Content-Encoding are not accepted; send uncompressed JSON", closes=True)
        if any(value.isdigit() and int(value) > self._max_body for value in header_values(scope, b"content-length")):
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(RECEIVE_SECONDS):
                while await self._extend(body, uid, receive):
                    pass
        except BaseException as error:
            self.release(uid, len(body))
            if isinstance(error, TimeoutError):
                message = f"The body was not complete after {RECEIVE_SECONDS:g} seconds"
                raise Rejection(408, message, closes=True) from None
            raise
        return body

    async def _extend(self, body: bytearray, uid: str, receive: Receive) -> bool:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > self._max_body:
            raise self._too_large()
        if self._sizes.total() + len(chunk) > MAX_BUFFERED or self._sizes[uid] + len(chunk) > MAX_BUFFERED_PER_RUN:
            text = "The engine's limit on request bytes, of this run or of all runs, is reached; retry later"
            raise Rejection(429, text, closes=True)
        body += chunk
        self._sizes[uid] += len(chunk)
        return bool(message.get("more_body", False))

    def release(self, uid: str, size: int) -> None:
        """Stop counting a body of `size` bytes."""
        self._sizes[uid] -= size
        if not self._sizes[uid]:
            del self._sizes[uid]

    def _too_large(self) -> Rejection:
        # The gateway recognizes the words "maximum context length".
        message = (
            f"The body is larger than {self._max_body} bytes, more than this model's maximum context length ever needs"
        )
        return Rejection(413, message, closes=True)


def with_fields(body: bytes | bytearray, fields: Mapping[str, object]) -> bytes:
    """Return the JSON object `body` with fields set. Raises Rejection (400) if `body` cannot be a JSON object in UTF-8.

    The fields are inserted before the last brace, because parsers use the last of several duplicate keys. `body` is not
    parsed. The result is either invalid JSON or an object with these fields. In valid JSON, the final brace ends the
    outermost object, so the inserted text belongs to that object. The inserted text cannot be part of a string, because
    its first quote would end the string and a letter would follow, which is invalid. A body that contains NUL
    bytes is rejected, because `json.loads` would decode it as UTF-16 or UTF-32.
    """
    text = body.strip(_BLANK)
    if not text.startswith(b"{") or not text.endswith(b"}") or b"\0" in text:
        raise Rejection(400, NOT_JSON)
    separator = b"" if _EMPTY.fullmatch(text) else b","
    return b"".join((memoryview(text)[:-1], separator, json.dumps(fields)[1:].encode()))


def check_prompt(body: bytes) -> None:
    """Check that the JSON object `body` has a single prompt and requests at most MAX_PROMPT_LOGPROBS likely tokens for
    it, over all sequences. The middleware has set `n` in the body. Raises Rejection (400).

    vLLM samples sequences for each text or list of tokens in a list, and computes the likely tokens for each of the `n`
    sequences. Its parser takes the last of several duplicate keys, as `json.loads` does.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise Rejection(400, NOT_JSON) from None
    if isinstance(prompt := request.get("prompt"), list) and not _are_tokens(prompt):
        raise Rejection(400, "prompt must be a single string or a single list of token ids")
    _check_prompt_logprobs(request.get("prompt_logprobs"), prompt, request.get("n", 1))
    parameters = request.get("kv_transfer_params")
    tokens = parameters.get("prompt_token_ids") if isinstance(parameters, dict) else None
    if tokens is not None and not _are_tokens(tokens):
        raise Rejection(400, "kv_transfer_params.prompt_token_ids must be a list of token ids")


def _check_prompt_logprobs(likely: object, prompt: object, sequences: int) -> None:
    if likely is None:
        return
    if type(likely) is not int or likely < 0:
        raise Rejection(400, "prompt_logprobs must be a non-negative integer or null")
    # A text has at least as many bytes as tokens. The number of a chat's tokens is not known here.
    text = prompt.encode("utf-8", "replace") if isinstance(prompt, str) else prompt
    length = len(text) if isinstance(text, bytes | list) else MAX_PROMPT_LOGPROBS + 1
    # With 0, vLLM gives the prompt's own tokens. A single sequence has no more of them than the model's length.
    count = likely if sequences == 1 else max(1, likely)
    if count * length * sequences > MAX_PROMPT_LOGPROBS:
        message = (
            f"prompt_logprobs: {likely} likely tokens for each token of the prompt may exceed the limit of "
            f"{MAX_PROMPT_LOGPROBS} for all sequences; send a shorter prompt as text or token ids, or set "
            "prompt_logprobs to 0 and n to 1"
        )
        raise Rejection(400, message)


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int}
