"""Equal first requests of a group's rollouts, sent to the gateway as one.

A request costs the worker, the gateway and the engine's HTTP server more CPU time than a short completion. Rollouts of
a group start at the same time with the same prompt, so their first requests are usually equal and are ready in the same
iteration of the event loop. Such requests are sent as one. No request waits longer than this iteration for others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Generic, TypeVar

from openai import APIError
from rlrun.protocol.environment import MAX_SHARED_ROLLOUTS

T = TypeVar("T")

log = logging.getLogger(__name__)


class SharedRequests(Generic[T]):
    """First requests of one group's rollouts."""

    def __init__(self, send: Callable[[str, Sequence[str]], Awaitable[Sequence[T]]]) -> None:
        """`send` sends one request with the same content for several rollouts, and returns their responses in order."""
        self._send = send
        self._known: set[str] = set()
        self._waiting: dict[str, dict[str, asyncio.Future[T | None]]] = {}
        """Future responses by rollout, for each content whose request has not been sent yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def response(self, rollout: str, content: str) -> T | None:
        """Return the response to the rollout's first request, or None if the rollout must send a request of its own.

        A rollout must send its own request if it has sent one before, if no other rollout has the same content, or if
        the shared request failed with APIError. Raises any other error of the shared request.
        """
        if rollout in self._known:
            return None
        self._known.add(rollout)
        loop = asyncio.get_running_loop()
        batch = self._waiting.get(content)
        if batch is None or len(batch) == MAX_SHARED_ROLLOUTS:
            batch = self._waiting[content] = {}
            loop.call_soon(self._start, content, batch)
        future: asyncio.Future[T | None] = loop.create_future()
        batch[rollout] = future
        return await future

    def _start(self, content: str, batch: "dict[str, asyncio.Future[T | None]]") -> None:
        if self._waiting[content] is batch:
            del self._waiting[content]
        waiting = {rollout: future for rollout, future in batch.items() if not future.done()}
        if len(waiting) < 2:
            _resolve(waiting.values(), [])
            return
        task = asyncio.create_task(self._request(content, waiting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def leave(_: "asyncio.Future[T | None]") -> None:
            # The rollouts were cancelled.
            if all(future.done() for future in waiting.values()):
                task.cancel()

        for future in waiting.values():
            future.add_done_callback(leave)

    async def _request(self, content: str, waiting: "dict[str, asyncio.Future[T | None]]") -> None:
        responses: Sequence[T] = []
        try:
            responses = await self._send(content, list(waiting))
        except APIError as error:
            log.info("A request for %d rollouts failed, so each sends its own: %r", len(waiting), error)
        except Exception as error:
            # The gateway has recorded the responses: a request of its own would be a second turn of a rollout.
            for future in waiting.values():
                if not future.done():
                    future.set_exception(error)
        finally:
            _resolve(waiting.values(), responses)


def _resolve(futures: "Iterable[asyncio.Future[T | None]]", responses: Sequence[T]) -> None:
    """Set the results of all futures. Futures without a response get None."""
    for future, response in zip(futures, chain(responses, repeat(None)), strict=False):
        if not future.done():
            future.set_result(response)
