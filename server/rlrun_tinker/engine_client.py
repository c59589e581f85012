"""Requests to an engine of a shared pool and to its sidecar, with the token of a run."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp
from rlrun.api.base.received import ENGINE_LIMITS, InputInvalid, limits_of, read_fast
from rlrun.constants import CONFLICT, INFERENCE_PORT, SIDECAR_PORT, Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.client_run import ClientModel
from rlrun.protocol.inference import AdapterList
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.shared_pool import MODEL_HEADER
from rlrun.service.client import CONNECT_SECONDS, parse, read_body, request
from rlrun.service.errors import RequestError, RequestRejected
from rlrun_server.http.client_memory import ByteBudget

from rlrun_tinker.pool_connections import PoolConnections
from rlrun_tinker.sample_requests import in_parts
from rlrun_tinker.sample_response import MAX_RESPONSE

ENGINE_CONNECTIONS = 4096
"""Maximum number of connections to engines, for all runs. Each sample in an engine uses one. If there were no limit, a
few runs could take the file descriptors that connections to clients and trainers need.
"""
SAMPLE_SECONDS = 3600.0
"""Time limit of one sample in seconds, from the request to the engine until the complete response."""
LOAD_SECONDS = 300.0
"""Time limit in seconds for downloading a policy and loading it into the engine."""
UNLOAD_SECONDS = 15.0
RESPONSE_BYTES = (64 * 1024**2, 36 * 1024**2)
"""Maximum total size in bytes of engines' responses that are being received or parsed, for all runs and for one run."""
SMALL_RESPONSE = 64 * 1024
"""Size in bytes up to which a response does not count towards RESPONSE_BYTES."""
MEMORY_PAUSE = 0.05
"""Seconds between two attempts to reserve memory for a response."""
MAX_ERROR = 64 * 1024
MAX_TEXT = 500
BUSY = 429
NOT_READY = frozenset({401, 403, 503, 504})
"""Statuses of an engine or sidecar that has not received the run yet, is starting, or waits for S3."""
REFUSALS = frozenset({400, 413, 422})
"""Statuses with which every engine would reject the request, so that a retry does not help."""
FILES_MISSING = 424
"""Status of a sidecar that finds no files of the policy in S3, or files with a different digest."""


class EngineFull(Exception):
    """Raised if the engine has too many requests of the run. `retry_after` is the pause in seconds that the engine asks
    for, or 0.
    """

    def __init__(self, retry_after: float) -> None:
        super().__init__("the engine has too many requests of the run")
        self.retry_after = retry_after


class EngineNotReady(Exception):
    """Raised if the engine does not serve the run now. A later request may succeed."""


class EngineFailed(Exception):
    """Raised if the engine does not respond, or fails."""


class EngineError(EngineFailed):
    """Raised if the engine or its sidecar responds with an error that is not a refusal."""


class PolicyNotLoaded(Exception):
    """Raised if the engine does not have the policy."""


class PoliciesFull(Exception):
    """Raised if the engine has no space for a policy of the run."""


class SampleRefused(Exception):
    """Raised for a request that no engine would accept. The message is for the user."""


@dataclass(frozen=True)
class EngineAddress:
    """Addresses of an engine and its sidecar."""

    engine: str
    sidecar: str


Resolve = Callable[[str], Awaitable[Sequence[EngineAddress]]]


async def resolve_engines(host: str) -> list[EngineAddress]:
    """Return the addresses of the engines behind a headless Service. Raises OSError if the DNS lookup fails."""
    found = await asyncio.get_running_loop().getaddrinfo(host, INFERENCE_PORT, type=socket.SOCK_STREAM)
    hosts = sorted({f"[{each[4][0]}]" if each[0] == socket.AF_INET6 else str(each[4][0]) for each in found})
    return [EngineAddress(f"http://{each}:{INFERENCE_PORT}", f"http://{each}:{SIDECAR_PORT}") for each in hosts]


class EngineClient:
    """HTTP client for the engines and sidecars of all pools."""

    def __init__(self) -> None:
        self._connections = PoolConnections(ENGINE_CONNECTIONS)
        self._sidecars = PoolConnections()
        self._memory = ByteBudget(*RESPONSE_BYTES)

    async def complete(
        self,
        engine: EngineAddress,
        run: ClientModel,
        name: str,
        body: Sequence[bytes],
        read: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Send a completion request of a run, and call `read` with the response, which counts towards RESPONSE_BYTES
        until `read` returns. `name` is the policy's name relative to the run, or the id of the base model.

        Raises EngineFull, EngineNotReady, EngineFailed, PolicyNotLoaded, SampleRefused, and what `read` raises.
        """
        url = f"{engine.engine}/v1/completions"
        headers = {
            **bearer(run.token or ""),
            MODEL_HEADER: name,
            "Content-Type": "application/json",
            "Content-Length": str(sum(map(len, body))),
        }
        timeout = aiohttp.ClientTimeout(total=SAMPLE_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            async with self._connections.session().post(
                url, data=in_parts(list(body)), headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise _refusal(response, await read_body(response, url, MAX_ERROR), name)
                size = response.content_length
                if size is not None and size > MAX_RESPONSE:
                    message = f"The engine's response is {size} bytes, more than the maximum of {MAX_RESPONSE}."
                    raise SampleRefused(f"{message} Request fewer tokens or log-probabilities.")
                limit = SMALL_RESPONSE if size is None else size
                held = await self._hold(run.uid, limit)
                try:
                    await read(await read_body(response, url, limit))
                finally:
                    self._memory.free(run.uid, held)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            # DNS also has the addresses of pods that are starting.
            raise EngineNotReady("an engine of the pool is starting") from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise EngineFailed(f"an engine does not respond ({type(error).__name__})") from error
        except RequestRejected as error:
            raise EngineFailed("an engine's response is too large") from error

    async def load(self, engine: EngineAddress, run: ClientModel, policy: PolicyRef) -> AdapterList:
        """Load a policy of a run. Returns the run's loaded policies after the engine has confirmed the new policy.

        Raises EngineNotReady, EngineFailed, PoliciesFull, SampleRefused.
        """
        body = policy.model_dump_json(by_alias=True, exclude_none=True).encode()
        return await self._call_sidecar("PUT", engine, run, policy.name, LOAD_SECONDS, body)

    async def unload(self, engine: EngineAddress, run: ClientModel, name: str) -> AdapterList:
        """Unload a policy. Returns the run's policies that are still loaded. Raises the same exceptions as `load`."""
        return await self._call_sidecar("DELETE", engine, run, name, UNLOAD_SECONDS, None)

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()
        await self._sidecars.close()

    async def _call_sidecar(
        self, method: str, engine: EngineAddress, run: ClientModel, name: str, seconds: float, body: bytes | None
    ) -> AdapterList:
        url = f"{engine.sidecar}/adapters/{name}"
        try:
            answer = await request(
                self._sidecars.session(),
                method,
                url,
                body=body,
                timeout=seconds,
                max_bytes=limits_of(AdapterList).size,
                quote_text=False,
                headers=bearer(run.token or ""),
            )
            return parse(AdapterList, answer, url)
        except RequestError as error:
            status, message = error.status, error.problem.message
            if status == CONFLICT:
                raise PoliciesFull(message) from None
            if status == FILES_MISSING or (status in REFUSALS and error.problem.reason != Reason.ADAPTER_IGNORED):
                raise SampleRefused(message) from None
            if status is None or status in NOT_READY:
                raise EngineNotReady(message) from None
            raise EngineError(message) from None

    async def _hold(self, owner: str, size: int) -> int:
        """Wait until there is memory for a response, and reserve it. Until then, the response stays in network buffers.
        Returns the number of reserved bytes, which is 0 for a small response.
        """
        if size <= SMALL_RESPONSE:
            return 0
        while not self._memory.take(owner, size):  # noqa: ASYNC110  # waits are rare, and a budget has no event
            await asyncio.sleep(MEMORY_PAUSE)
        return size


def _refusal(response: aiohttp.ClientResponse, body: bytes, name: str) -> Exception:
    status = response.status
    if status == BUSY:
        retry_after = response.headers.get("Retry-After", "")
        return EngineFull(float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0)
    if status == 404 and name.encode() in body:
        return PolicyNotLoaded(f"an engine does not have the policy {name}")
    text = _text(body)
    if status in NOT_READY:
        return EngineNotReady(text or f"an engine responded with status {status}")
    if status in REFUSALS:
        return SampleRefused(text or f"The engine refused the request with status {status}.")
    return EngineError(f"an engine responded with status {status}")


def _text(body: bytes) -> str:
    """Return the message in an engine's error response, or an empty string."""
    try:
        found = read_fast(body, limits=ENGINE_LIMITS)
        return str((found.get("error") or found)["message"])[:MAX_TEXT]
    except (InputInvalid, KeyError, TypeError, AttributeError):
        return ""
