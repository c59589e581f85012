"""Routes requests to replicas that serve the policy, with retries on other replicas."""

import asyncio
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import aiohttp
from rlrun.api.base.received import ENGINE_LIMITS
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MODEL_HEADER, SEQUENCES_HEADER
from rlrun.service.access import UNAUTHORIZED
from rlrun.service.backoff import Backoff
from rlrun.service.client import read_body
from rlrun.service.errors import ProblemError, RequestRejected

from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups, ServedPolicy
from rlrun_orchestrator.inference.replica_pool import (
    BUSY_SECONDS,
    LONGEST_BUSY_SECONDS,
    TOO_MANY_REQUESTS,
    Replica,
    ReplicaPool,
    unauthorized_message,
)

MAX_TRIES = 4
CONNECT_SECONDS = 5.0


@dataclass
class RoutingStats:
    """Counters of routed requests since the start of the process."""

    requests: int = 0
    retries: int = 0
    failures: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """Number of requests that the gateway rejected, by reason."""
    prefixes: Counter[str] = field(default_factory=Counter)
    """Number of chats that continue a recorded chat, by outcome. Prompts counted as `exact` or `bridged` start with the
    recorded chat's tokens; prompts counted as `broken` do not.
    """


class GroupClosed(Exception):
    """Error for a group that ended while its request waited."""


class NoReplicaAvailable(Exception):
    """Error for a request that no replica could serve in time."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class EngineBusy(Exception):
    """Error for a request that an engine refused because the run has too many requests in progress."""

    def __init__(self, text: str, retry_after: float) -> None:
        """`retry_after` is the pause in seconds that the engine asks for, or 0 if it asks for none."""
        super().__init__(text)
        self.retry_after = retry_after


class RequestRouter:
    """Chooses replicas for requests, and marks failing replicas as suspect."""

    def __init__(
        self, http: aiohttp.ClientSession, pool: ReplicaPool, groups: LiveGroups, *, wait: float, deadline: float
    ) -> None:
        """`wait` is the maximum time to wait for a replica, `deadline` for one response, both in seconds."""
        self.stats = RoutingStats()
        self._http = http
        self._pool = pool
        self._groups = groups
        self._wait = wait
        self._deadline = deadline
        self._limits = aiohttp.ClientTimeout(total=deadline, sock_connect=CONNECT_SECONDS)

    async def send(
        self, group: LiveGroup, served: ServedPolicy, path: str, body: bytes, sequences: int = 1
    ) -> tuple[int, bytes]:
        """Send a request for `sequences` completions to a replica of the policy and return the status (below 500, but
        not 401 or 429) and the body of the response.

        While all of these replicas are busy, the request waits, for at most `deadline`. Raises NoReplicaAvailable,
        GroupClosed, and ProblemError if the response is too large.
        """
        self.stats.requests += 1
        started = time.monotonic()
        ends = started + self._wait
        tries = 0
        busy: defaultdict[Replica, Backoff] = defaultdict(lambda: Backoff(BUSY_SECONDS, LONGEST_BUSY_SECONDS))
        problem = Problem(reason=Reason.INFERENCE_FAILED, message="no replica responded")
        while tries < MAX_TRIES:
            if self._groups.get(group.id) is not group:
                raise GroupClosed
            now = time.monotonic()
            paused = {replica: backoff.until for replica, backoff in busy.items() if not backoff.open(now)}
            replica = self._pool.choose(served.required_policy, group.home, paused)
            if replica is None:
                left = (min(*paused.values(), started + self._deadline) if paused else ends) - now
                if left <= 0:
                    if not paused:
                        problem = self._pool.problem(None if served.base else served.policy)
                    break
                await self._pool.wait_for_change(min(left, 1.0))
                continue
            group.home = replica
            try:
                status, answer = await self._send(replica, path, served.model, body, sequences)
            except EngineBusy as error:
                # Not a failure of the replica, and not one of the request's tries.
                now, pause = time.monotonic(), busy[replica]
                pause.record_failure(now)
                # Requests that were refused together must not return together.
                wanted = max(error.retry_after, pause.pause) * random.uniform(1, 1.5)
                pause.until = now + min(wanted, LONGEST_BUSY_SECONDS)
                ends = pause.until + self._wait
                message = (
                    f"the inference engines are busy: {replica.endpoint.engine_url} returned 429 ({error}), and the "
                    f"request waits for at most {self._deadline:g} s; reduce the run's concurrency or add engines"
                )
                problem = Problem(reason=Reason.INFERENCE_FAILED, message=message)
                continue
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                url = replica.endpoint.engine_url
                problem = Problem(
                    reason=Reason.INFERENCE_FAILED, message=f"{url}: {error or type(error).__name__}"[:500]
                )
                replica.mark_suspect(problem)
            except RequestRejected as error:
                # The request is the cause: every other replica, and each retry of the client, would fail in the same
                # way.
                self.stats.failures += 1
                message = f"{error.problem.message.rstrip('.')}. Request fewer tokens, or fewer top_logprobs."
                raise ProblemError.of(413, error.problem.reason, message) from error
            else:
                lost = status == 404 and served.model == served.required_policy and served.model.encode() in answer
                if status < 500 and status != UNAUTHORIZED and not lost:
                    return status, answer
                text = answer[:300].decode("utf-8", "replace")
                url = replica.endpoint.engine_url
                message = unauthorized_message(url) if status == UNAUTHORIZED else f"{url} returned {status}: {text}"
                problem = Problem(reason=Reason.INFERENCE_FAILED, message=message)
                if status == 404:  # the engine restarted without the adapter
                    replica.adapters.discard(served.policy.name)
                    replica.wake.set()
                else:
                    replica.mark_suspect(problem)
            tries += 1
            self.stats.retries += 1
        self.stats.failures += 1
        raise NoReplicaAvailable(problem)

    async def _send(self, replica: Replica, path: str, model: str, body: bytes, sequences: int) -> tuple[int, bytes]:
        replica.requests += sequences
        call = asyncio.ensure_future(self._post(replica.endpoint.engine_url + path, model, body, sequences))
        replica.calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            # The pool cancels the calls of a removed replica; the client did not cancel.
            if call.cancelled() and not _being_cancelled():
                raise aiohttp.ServerDisconnectedError(f"{replica.endpoint.engine_url} was removed") from None
            raise
        finally:
            replica.calls.discard(call)
            call.cancel()
            replica.requests -= sequences

    async def _post(self, url: str, model: str, body: bytes, sequences: int) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", MODEL_HEADER: model, SEQUENCES_HEADER: str(sequences)}
        async with self._http.post(
            url, data=body, headers=headers, timeout=self._limits, allow_redirects=False
        ) as response:
            answer = await read_body(response, url, ENGINE_LIMITS.size)
            if response.status == TOO_MANY_REQUESTS:
                retry_after = response.headers.get("Retry-After", "")
                seconds = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0
                raise EngineBusy(answer[:300].decode("utf-8", "replace"), seconds)
            return response.status, answer


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
