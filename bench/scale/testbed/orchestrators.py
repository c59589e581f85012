"""HTTP server that responds for the orchestrators of all runs, as a separate process.

    python -m bench.scale.testbed.orchestrators PORT_FILE

Every run is in phase Running. After `PUT /pace {"seconds": S}`, each run makes a step every S seconds, at times spread
evenly over the runs; 0 stops the steps. The step of a run depends only on the time, so that the benchmark knows when it
was made. Its policy is published a little later; as with a real orchestrator, this does not complete a waiting request.
After `PUT /silent {"namespaces": [...]}`, requests to the runs of these namespaces never get a response.
"""

import asyncio
import sys
import time
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web
from rlrun.protocol.orchestrator import MAX_WAIT_SECONDS, SINCE, WAIT, RunPhase, RunStatus

MAX_STEPS = 1_000_000
PUBLISH_SECONDS = 3.0
"""Seconds from a step to the publication of its policy."""


@dataclass
class StepSchedule:
    """Steps of all runs as a function of time."""

    seconds: float = 0.0
    """Seconds between two steps of a run. 0 means no steps."""
    began: float = 0.0
    """Unix time of the first steps."""
    first: int = 1
    """Step of all runs at `began`."""

    def step(self, run: str, now: float) -> int:
        """Return the step of a run at a Unix time."""
        if not self.seconds:
            return self.first
        return self.first + max(0, int((now - self.began - self._offset(run)) // self.seconds) + 1)

    def made_at(self, run: str, step: int) -> float:
        """Return the Unix time at which a run makes a step after `first`."""
        return self.began + self._offset(run) + (step - self.first - 1) * self.seconds

    def last_step_at(self, run: str, now: float) -> float | None:
        """Return the Unix time of the last step of a run, or None before a pace was set."""
        step = self.step(run, now)
        return (self.made_at(run, step) if step > self.first else self.began) or None

    def next_step_at(self, run: str, now: float) -> float:
        """Return the Unix time of the next step of a run."""
        return self.made_at(run, self.step(run, now) + 1)

    def _offset(self, run: str) -> float:
        return zlib.crc32(run.encode()) / 2**32 * self.seconds


class Orchestrators:
    """Server of /NAMESPACE/NAME, whose requests wait until the step changes."""

    def __init__(self) -> None:
        self._pace = StepSchedule()
        self._changed = asyncio.Event()
        self._silent: frozenset[str] = frozenset()

    def app(self) -> web.Application:
        """Return the server."""
        app = web.Application()
        app.add_routes(
            [
                web.put("/pace", self._set_pace),
                web.put("/silent", self._set_silent),
                web.get("/{namespace}/{name}", self._status),
            ]
        )
        return app

    async def _set_pace(self, request: web.Request) -> web.Response:
        body, now = await request.json(), time.time()
        self._pace = StepSchedule(float(body["seconds"]), now, int(body.get("first", 1)))
        self._changed.set()
        self._changed = asyncio.Event()
        return web.json_response(vars(self._pace))

    async def _set_silent(self, request: web.Request) -> web.Response:
        self._silent = frozenset((await request.json())["namespaces"])
        return web.json_response({"namespaces": sorted(self._silent)})

    async def _status(self, request: web.Request) -> web.Response:
        run = f"{request.match_info['namespace']}/{request.match_info['name']}"
        end = time.time() + min(float(request.query.get(WAIT, 0)), MAX_WAIT_SECONDS)
        if request.match_info["namespace"] in self._silent:
            await asyncio.Event().wait()
        while (status := self._report(run)).version == request.query.get(SINCE) and time.time() < end:
            pause = end - time.time()
            if self._pace.seconds:
                pause = min(pause, self._pace.next_step_at(run, time.time()) - time.time() + 0.001)
            try:
                await asyncio.wait_for(self._changed.wait(), max(pause, 0.001))
            except TimeoutError:
                continue
        return web.json_response(status.to_json_dict())

    def _report(self, run: str) -> RunStatus:
        now = time.time()
        step, policy = self._pace.step(run, now), self._pace.step(run, now - PUBLISH_SECONDS)
        made = self._pace.last_step_at(run, now)
        return RunStatus(
            version=str(step),
            phase=RunPhase.running,
            step=step,
            max_steps=MAX_STEPS,
            policy_version=policy,
            # Without it, a run counts as stalled an hour after its start.
            last_step_time=None if made is None else datetime.fromtimestamp(made, UTC),
        )


async def serve(port_file: Path) -> None:
    """Serve until cancelled, on a free port that is written to the file."""
    runner = web.AppRunner(Orchestrators().app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    draft = port_file.with_suffix(".tmp")
    draft.write_text(str(runner.addresses[0][1]))
    draft.replace(port_file)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
