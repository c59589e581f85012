"""Bodies of requests: receiving them within limits, and setting fields without parsing."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping

from rlrun_engine_access.asgi import Disconnected, Message, Receive, Refusal, header_values

MAX_BODY = 64 * 1024**2
"""Maximum size of a body in bytes, as in the gateway."""
MAX_BUFFERED = 512 * 1024**2
"""Maximum size in bytes of all bodies that are in memory because their requests wait."""
MAX_BUFFERED_PER_RUN = 128 * 1024**2
"""Maximum size in bytes of one run's bodies in memory, so that one run alone cannot fill MAX_BUFFERED."""
RECEIVE_SECONDS = 60.0
"""Seconds for a client to send its body, as in the gateway."""
_BLANK = b" \t\r\n"
_EMPTY = re.compile(rb"\{[ \t\r\n]*\}")


class BodyBuffer:
    """Bodies in memory until vLLM reads them."""

    def __init__(self) -> None:
        self._sizes: Counter[str] = Counter()

    async def receive(self, uid: str, scope: Message, receive: Receive) -> bytearray:
        """Receive a body of the run `uid`, and count it until `release`.

        Raises Refusal (408, 413, 415, 429) and Disconnected.
        """
        if any(value.lower() != b"identity" for value in header_values(scope, b"content-encoding")):
            raise Refusal(415, "Bodies with a Content-Encoding are not accepted; send the JSON as it is", closes=True)
        if any(value.isdigit() and int(value) > MAX_BODY for value in header_values(scope, b"content-length")):
            raise _too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(RECEIVE_SECONDS):
                while await self._extend(body, uid, receive):
                    pass
        except BaseException as error:
            self.release(uid, len(body))
            if isinstance(error, TimeoutError):
                message = f"The body was not complete after {RECEIVE_SECONDS:g} seconds"
                raise Refusal(408, message, closes=True) from None
            raise
        return body

    async def _extend(self, body: bytearray, uid: str, receive: Receive) -> bool:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > MAX_BODY:
            raise _too_large()
        if self._sizes.total() + len(chunk) > MAX_BUFFERED or self._sizes[uid] + len(chunk) > MAX_BUFFERED_PER_RUN:
            raise Refusal(429, "Too many bytes of requests wait for this engine; retry the request", closes=True)
        body += chunk
        self._sizes[uid] += len(chunk)
        return bool(message.get("more_body", False))

    def release(self, uid: str, size: int) -> None:
        """Stop counting a body of `size` bytes."""
        self._sizes[uid] -= size
        if not self._sizes[uid]:
            del self._sizes[uid]


def with_fields(body: bytes | bytearray, fields: Mapping[str, object]) -> bytes:
    """Return the JSON object `body` with fields set. Raises Refusal (400) if `body` cannot be a JSON object in UTF-8.

    The fields are inserted before the last brace, because parsers take the last of several equal names. `body` is not
    parsed. The result is either not JSON, or an object with these fields: as the result ends with the inserted text and
    a brace, this brace ends the outermost object; and if the inserted text began inside of a string, its first quote
    would end that string in front of a letter. `json.loads` would recognize UTF-16 and UTF-32 by zero bytes.
    """
    text = body.strip(_BLANK)
    if not text.startswith(b"{") or not text.endswith(b"}") or b"\0" in text:
        raise Refusal(400, "The body must be a JSON object in UTF-8")
    separator = b"" if _EMPTY.fullmatch(text) else b","
    return b"".join((memoryview(text)[:-1], separator, json.dumps(fields)[1:].encode()))


def _too_large() -> Refusal:
    return Refusal(413, f"The body is larger than {MAX_BODY} bytes", closes=True)
