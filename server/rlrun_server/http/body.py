"""Reads request bodies within limits on size, time and memory."""

import asyncio

from rlrun.constants import Reason
from rlrun.service.errors import ProblemError
from starlette.requests import ClientDisconnect, Request

from rlrun_server.http.client_memory import CountedBody

BODY_SECONDS = 30.0
"""Time limit for receiving a request body, in seconds."""


async def read_body(
    request: Request,
    limit: int,
    seconds: float = BODY_SECONDS,
    *,
    is_counted: bool = True,
    held: CountedBody | None = None,
) -> bytes:
    """Read a body of at most `limit` bytes in `seconds`. Raises ProblemError if it exceeds a limit or is incomplete.

    If `is_counted` is False, the body does not count towards the memory limit of bodies, because the route limits the
    number of bodies itself. If `held` is set, the body counts until the caller releases `held`.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    body, counted = bytearray(), held or CountedBody(request)
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit:
                    raise too_large(limit)
                if is_counted and not counted.grow(len(body) + len(chunk)):
                    message = "The server is receiving too many large request bodies. Retry the request later."
                    raise ProblemError.of(503, Reason.TOO_MANY_REQUESTS, message)
                body += chunk
    except TimeoutError:
        message = f"The body of the request did not arrive within {seconds:.0f} s. Retry the request."
        raise ProblemError.of(408, Reason.BODY_TOO_SLOW, message) from None
    except ClientDisconnect:
        raise ProblemError.of(400, Reason.INVALID_REQUEST, "The body is incomplete: the client disconnected.") from None
    finally:
        if held is None:
            counted.release()
    return bytes(body)


def too_large(limit: int) -> ProblemError:
    """Return the error for a body that is larger than `limit` bytes."""
    message = f"The body of the request is larger than {limit} bytes. Send a smaller one."
    return ProblemError.of(413, Reason.BODY_TOO_LARGE, message)
