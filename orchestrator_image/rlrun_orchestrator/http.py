"""One request to another process of the run, with the two ways it can fail told apart.

`Unavailable`: nobody answered, or the answer was "not now"; the same request may succeed later. `Refused`: the other
side understood and said no; repeating the request will not change its mind.
"""

from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError
from rlrun.schema.wire import Problem

NOT_NOW = frozenset({408, 425, 429, 502, 503, 504})
CONNECT_SECONDS = 5.0
TEXT_LIMIT = 500

M = TypeVar("M", bound=BaseModel)


class RequestFailed(Exception):
    """Base of both failures; `problem` is the other side's own words when it had any."""

    def __init__(self, problem: Problem, status: int | None = None) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem
        self.status = status


class Unavailable(RequestFailed):
    """Worth another try later."""


class Refused(RequestFailed):
    """Not worth another try as it is."""


async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    timeout: float,
    max_bytes: int | None = None,
) -> bytes:
    """The body of a successful answer. Raises Unavailable or Refused; never waits longer than `timeout` seconds and
    never reads much more than `max_bytes`.
    """
    limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
    headers = {"Content-Type": "application/json"} if body is not None else None
    try:
        async with session.request(method, url, data=body, headers=headers, timeout=limits) as response:
            data = await _read(response, url, max_bytes)
            if response.status < 400:
                return data
            problem = problem_of(response.status, data, url)
            kind = Unavailable if response.status in NOT_NOW else Refused
            raise kind(problem, response.status)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        words = str(error) or type(error).__name__
        raise Unavailable(Problem(reason="Unreachable", message=f"{method} {url}: {words}"[:TEXT_LIMIT])) from error


async def _read(response: aiohttp.ClientResponse, url: str, limit: int | None) -> bytes:
    if limit is None:
        return await response.read()
    data = bytearray()
    async for chunk in response.content.iter_any():
        data += chunk
        if len(data) > limit:
            message = f"the answer of {url} is larger than {limit} bytes"
            raise Refused(Problem(reason="AnswerTooLarge", message=message), response.status)
    return bytes(data)


def parse(model: type[M], data: bytes, source: str) -> M:
    """The answer as `model`. Raises Refused when it is none: two versions of this project talk to each other."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        message = f"the answer of {source} is no {model.__name__} of this version: {error.errors()[0]['msg']}"
        raise Refused(Problem(reason="AnswerInvalid", message=message)) from error


def problem_of(status: int, body: bytes, url: str) -> Problem:
    """The `Problem` in an error's body, or one made of what little there is."""
    try:
        return Problem.model_validate_json(body)
    except ValidationError:
        text = body.decode("utf-8", "replace")[:TEXT_LIMIT]
        return Problem(reason=f"HTTP{status}", message=f"{url} answered {status}: {text}")
