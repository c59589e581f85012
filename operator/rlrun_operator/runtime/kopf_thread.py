"""Thread in which kopf runs, with an event loop of its own.

When kopf stops, it cancels all tasks that were started in its event loop after kopf. In the main thread of a process it
would also replace the signal handlers. kopf stops when the API server responds to a watch with an error, for example
status 410.
"""

import asyncio
import contextlib
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec

import kopf

log = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
PROVEN_SECONDS = 60.0
"""Seconds for which kopf must have run to be restarted without a long pause."""
STOP_SECONDS = 2.0
"""Maximum seconds to wait for kopf to stop by itself, and then again for its event loop to stop."""


P = ParamSpec("P")


class KopfThread:
    """Runs kopf, and restarts it whenever it stops."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        """`namespaces` are the namespaces that kopf watches. If it is empty, kopf watches all namespaces."""
        self._namespaces = namespaces
        self._restart = asyncio.Event()

    def restart(self) -> None:
        """Restart kopf. kopf's cleanup handler also calls this method, when kopf stops by itself."""
        self._restart.set()

    async def run(self, registry: kopf.OperatorRegistry) -> None:
        """Run kopf until cancelled."""
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            error = await self._run_once(registry)
            pause = FIRST_PAUSE if time.monotonic() - began >= PROVEN_SECONDS else pause
            log.warning("kopf stopped; restarting it within %.0f s: %s", pause, error or "it did not list all objects")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _run_once(self, registry: kopf.OperatorRegistry) -> BaseException | None:
        """Run kopf until it stops or `restart` is called. Returns the error that stopped kopf, or None."""
        self._restart.clear()
        loop, kopf_loop = asyncio.get_running_loop(), asyncio.new_event_loop()
        kopf_loop.set_exception_handler(lambda _, context: log.debug("kopf: %s", context))
        ended: asyncio.Future[BaseException | None] = loop.create_future()
        ended.add_done_callback(lambda _: self.restart())
        # An asyncio.Event belongs to the loop that first waits for it.
        stop = asyncio.Event()

        def main() -> None:
            error: BaseException | None = None
            try:
                kopf.run(
                    loop=kopf_loop,
                    registry=registry,
                    standalone=True,
                    clusterwide=not self._namespaces,
                    namespaces=self._namespaces,
                    stop_flag=stop,
                )
            except BaseException as caught:
                error = caught
            kopf_loop.close()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set_result, error)

        threading.Thread(target=main, name="kopf", daemon=True).start()
        try:
            await self._restart.wait()
        finally:
            # kopf may wait without end for a watch that logs in again while kopf logs out.
            for end in (stop.set, kopf_loop.stop):
                with contextlib.suppress(RuntimeError):
                    kopf_loop.call_soon_threadsafe(end)
                await asyncio.wait([ended], timeout=STOP_SECONDS)
        return ended.result() if ended.done() else None


def in_this_loop(function: Callable[P, object]) -> Callable[P, None]:
    """Wrap `function` so that other threads can call it; it then runs on this thread's event loop."""
    loop = asyncio.get_running_loop()

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        loop.call_soon_threadsafe(functools.partial(function, *args, **kwargs))

    return call
