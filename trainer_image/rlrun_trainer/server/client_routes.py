"""Routes for runs whose training loop is a client's program (`rlrun.protocol.client_command`)."""

import asyncio
import math

from aiohttp import hdrs, web
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.client_command import CONTENT_TYPE, MAX_COMMAND_BYTES, MAX_WAIT_SECONDS
from rlrun.service.errors import ProblemError
from rlrun.service.server import BODY_SECONDS, PARSE_ASIDE, json_response

from rlrun_trainer.server.pool_access import COMMAND_PATH, HEARTBEAT_PATH, RESULT_PATH
from rlrun_trainer.sessions.client_runs import ClientProgram, ClientRuns
from rlrun_trainer.sessions.received_command import ReceivedCommand

MAX_NUMBER = 2**31 - 1
TOO_LARGE = 413
WAITS_FOR_SESSION = "the trainer is opening the session"


class ClientRoutes:
    """Routes for the client programs of a shared pool's runs."""

    def __init__(self, clients: ClientRuns) -> None:
        self._clients = clients

    def all(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post(COMMAND_PATH, self._command),
            web.get(RESULT_PATH, self._result, allow_head=False),
            web.post(HEARTBEAT_PATH, self._heartbeat),
        ]

    async def _command(self, request: web.Request) -> web.Response:
        client, number = self._find(request), _number_of(request)
        size = _size_of(request)
        with client.sequence.reading(number, size):
            body = await _read_body(request, size)
            if size > PARSE_ASIDE:
                async with client.parsing:
                    received = await asyncio.to_thread(ReceivedCommand.read, body)
            else:
                received = ReceivedCommand.read(body)
            client.sequence.receive(number, received)
        return web.Response(status=202)

    async def _result(self, request: web.Request) -> web.Response:
        client, number = self._find(request), _number_of(request)
        result = await client.sequence.result(number, _wait_of(request))
        client.on_call()
        if result is None:
            problem = client.opening_problem
            pending = client.sequence.pending(WAITS_FOR_SESSION if problem is None else problem.message)
            return json_response(pending, 202)
        return web.Response(body=result, content_type=CONTENT_TYPE)

    async def _heartbeat(self, request: web.Request) -> web.Response:
        self._find(request)
        return web.Response(status=204)

    def _find(self, request: web.Request) -> ClientProgram:
        return self._clients.find(request.match_info["session"])


def _number_of(request: web.Request) -> int:
    text = request.match_info["number"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= MAX_NUMBER):
        raise _invalid(f"{text[:40]!r} is not a call number. Send a number from 1 to {MAX_NUMBER}.")
    return int(text)


def _size_of(request: web.Request) -> int:
    size = request.content_length
    if size is None:
        raise _invalid("The size of the command is unknown. Send Content-Length.")
    if hdrs.CONTENT_ENCODING in request.headers:
        # aiohttp would decompress the body, and Content-Length is not the size of the result.
        raise _invalid("The command is compressed. Send it without Content-Encoding.")
    if size > MAX_COMMAND_BYTES:
        message = f"The command has {size} bytes; at most {MAX_COMMAND_BYTES} are allowed. Split it into several calls."
        raise ProblemError.of(TOO_LARGE, Reason.COMMAND_INVALID, message)
    return size


def _wait_of(request: web.Request) -> float:
    text = request.query.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise _invalid(f"wait is {text[:40]!r}. Send a number of seconds from 0 to {MAX_WAIT_SECONDS:g}.")
    return min(MAX_WAIT_SECONDS, max(0.0, seconds))


async def _read_body(request: web.Request, size: int) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.content.readexactly(size)
    except TimeoutError:
        message = f"The body did not arrive within {BODY_SECONDS:g} s. Send it again."
        raise ProblemError.of(408, Reason.BODY_TOO_SLOW, message) from None
    except asyncio.IncompleteReadError:
        raise _invalid("The body is shorter than Content-Length. Send it again.") from None


def _invalid(message: str) -> ProblemError:
    return ProblemError.of(UNPROCESSABLE, Reason.COMMAND_INVALID, message)
