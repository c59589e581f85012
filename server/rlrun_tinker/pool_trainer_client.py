"""Requests to the trainers of shared pools, with the token of a run.

A trainer's address comes from rlrun-server. Users of a namespace can point the pool's Service to another server, so a
response is discarded unless it proves that its sender knows the token.
"""

import io
import secrets

import aiohttp
from rlrun.api.base.received import InputInvalid, parse
from rlrun.constants import Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.client_command import CONTENT_TYPE, MAX_RESULT_BYTES, CommandPending
from rlrun.protocol.client_run import ClientModel
from rlrun.protocol.engine_proof import NONCE_HEADER, PROOF_HEADER, is_proven
from rlrun.protocol.problem import Problem
from rlrun.service.client import CONNECT_SECONDS, problem_from_response, read_body
from rlrun.service.errors import RequestError
from rlrun_server.http.client_memory import ByteBudget

from rlrun_tinker.pool_connections import PoolConnections

NONCE_BYTES = 16
SEND_SECONDS = 20.0
"""Time limit for sending a command, in seconds."""
HEARTBEAT_SECONDS = 5.0
REPLY_SECONDS = 10.0
"""Seconds, in addition to the requested wait for a result, within which the response must be complete."""
MAX_REPLY = 64 * 1024
RESULTS = (96 * 1024**2, 40 * 1024**2)
"""Maximum total size in bytes of results that are being received or converted, for all runs and for one run."""
NOT_READY = frozenset({401, 403, 404, 502, 503, 504})
"""Statuses of a trainer that does not know the run yet, or is shutting down."""


class TrainerUnready(Exception):
    """Raised if the trainer does not respond, or does not have the run yet. A later request may succeed."""


class CommandRejected(Exception):
    """Raised if the trainer rejects a request."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.message)
        self.status = status
        self.problem = problem


class ResultMemory:
    """Context manager for the memory that a request reserves for results of one run."""

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self._size = 0

    def __enter__(self) -> "ResultMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.free(self._owner, self._size)

    def hold(self, size: int) -> bool:
        """Reserve `size` bytes. Returns False if the budget does not allow it."""
        if not self._budget.take(self._owner, size):
            return False
        self._size += size
        return True


class PoolTrainerClient:
    """HTTP client for the trainers of all pools. All requests raise TrainerUnready and CommandRejected."""

    def __init__(self) -> None:
        self._connections = PoolConnections()
        self._results = ByteBudget(*RESULTS)

    def memory(self, owner: str) -> ResultMemory:
        """Return a context manager that reserves memory for results of `owner`."""
        return ResultMemory(self._results, owner)

    async def send(self, model: ClientModel, seq: int, command: bytes) -> None:
        """Send a command. Sending the same command again has no effect."""
        await self._request(model, "POST", f"commands/{seq}", SEND_SECONDS, MAX_REPLY, command)

    async def result(self, model: ClientModel, seq: int, wait: float, memory: ResultMemory) -> bytes | CommandPending:
        """Return the result of a command, or its state if there is no result within `wait` seconds. The size of the
        result is reserved in `memory`.
        """
        path = f"results/{seq}?wait={wait:.1f}"
        status, body = await self._request(model, "GET", path, wait + REPLY_SECONDS, MAX_RESULT_BYTES, memory=memory)
        try:
            return body if status == 200 else parse(CommandPending, body, "The trainer's response")
        except InputInvalid as error:
            message = str(error)
        raise TrainerUnready(message)

    async def touch(self, model: ClientModel) -> None:
        """Send a heartbeat, which shows the trainer that the client is alive."""
        await self._request(model, "POST", "heartbeat", HEARTBEAT_SECONDS, MAX_REPLY)

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def _request(
        self,
        model: ClientModel,
        method: str,
        path: str,
        seconds: float,
        limit: int,
        body: bytes | None = None,
        memory: ResultMemory | None = None,
    ) -> tuple[int, bytes]:
        if not model.trainer_url or not model.token:
            raise TrainerUnready("the run has no trainer yet")
        nonce = secrets.token_hex(NONCE_BYTES)
        headers = {**bearer(model.token), NONCE_HEADER: nonce, "Content-Type": CONTENT_TYPE}
        url = f"{model.trainer_url.rstrip('/')}/sessions/{model.uid}/{path}"
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        # A large body of bytes would be sent in one piece.
        data = None if body is None else io.BytesIO(body)
        try:
            async with self._connections.session().request(
                method, url, data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if not is_proven(model.token, nonce, response.headers.get(PROOF_HEADER, "")):
                    raise TrainerUnready(f"the trainer of {model.namespace}/{model.run} does not have the run yet")
                size = response.content_length
                if size is not None and size > limit:
                    message = f"The trainer's response is {size} bytes, more than the maximum of {limit}."
                    raise CommandRejected(413, Problem(reason=Reason.ANSWER_TOO_LARGE, message=message))
                if memory is not None and size is not None and not memory.hold(size):
                    raise TrainerUnready("too many large results are being received")
                received = await read_body(response, url, limit if size is not None else MAX_REPLY)
                if 200 <= response.status < 300:
                    return response.status, received
                problem = problem_from_response(response.status, received, url, quote_text=False)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RequestError) as error:
            message = f"the trainer of {model.namespace}/{model.run} does not respond ({type(error).__name__})"
            raise TrainerUnready(message) from error
        if response.status in NOT_READY and problem.reason != Reason.COMMAND_UNKNOWN:
            raise TrainerUnready(problem.message)
        raise CommandRejected(response.status, problem)
