"""Serves the sessions of a backend until SIGTERM, then finishes their uploads."""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from rlrun.api.base.received import parse as parse_received
from rlrun.api.base.rules import ADMITTED
from rlrun.constants import UNPROCESSABLE, ExitCode, Reason
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.shared_pool import MAX_RUNS, TrainerOrder
from rlrun.service.errors import ProblemError
from rlrun.service.exit import termination_log, write_termination_message
from rlrun.service.server import LimitedRunner, listen_on
from rlrun.storage.store import Store

from rlrun_trainer.runtime.compute_thread import PLATFORM, Compute
from rlrun_trainer.runtime.run_deaths import RunDeaths
from rlrun_trainer.runtime.settings import TrainerSettings, parse
from rlrun_trainer.server.http_server import Server
from rlrun_trainer.server.pool_server import PoolServer
from rlrun_trainer.sessions.backend import Backend
from rlrun_trainer.sessions.command_sequence import MAX_POLLS
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.shutdown_budget import checkpoint_lost
from rlrun_trainer.sessions.trained_runs import TrainedRuns

log = logging.getLogger("rlrun_trainer")

S3_THREADS = 64
S3_THREADS_PER_SLOT = 4
"""Maximum number of S3 threads that a session uses: one each for a policy, an artifact, a deletion and a listing."""
CONNECTIONS = 1024 + MAX_RUNS * MAX_POLLS
"""Maximum number of connections: 1024 for orchestrators and up to 256 engines, plus one for each client request that
waits for a result. While S3 is unreachable, an engine may open several connections to load policies.
"""
BEAT_SECONDS = 5.0
"""Seconds between two heartbeats.

The other processes wait at most `process_group.COLLECTIVE_TIMEOUT` for a command. Responding to a command is also
their only way to report a SIGTERM, and the first process needs the rest of the grace period for a last checkpoint.
"""

LoadBackend = Callable[[TrainerSettings, Callable[[], None]], Backend]
"""Function that loads the model, called on the compute thread. Raises ProblemError.

The second argument is a function to call, on any thread, when another process of the trainer has received SIGTERM.
"""


def read_settings() -> TrainerSettings:
    """Return the settings from the command line, and set up logging."""
    settings = parse(sys.argv[1:])
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return settings


def exit_with(code: int) -> NoReturn:
    """Exit the process immediately. A normal exit would wait for a step that still runs on the compute thread."""
    logging.shutdown()
    os._exit(code)


async def serve(settings: TrainerSettings, load: LoadBackend) -> int:
    """Serve until SIGTERM, or until the order is invalid or loading the model fails. Returns the exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # An unresponsive S3 blocks threads of every session for minutes, and steps need threads too.
    threads = max(S3_THREADS, S3_THREADS_PER_SLOT * settings.slots)
    loop.set_default_executor(ThreadPoolExecutor(threads, thread_name_prefix="s3-caller"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    deaths = RunDeaths(settings.deaths_file)
    try:
        server = _make_server(settings.order_path, deaths)
    except ProblemError as error:
        return report_failure(error)
    runner = LimitedRunner(server.application(), connections=CONNECTIONS, cancels=False, drain_seconds=1.0)
    await runner.setup()
    await listen_on(runner, settings.port, settings.host)
    log.info("Listening on port %d, %d threads", settings.port, settings.threads)
    compute = Compute(on_owner=deaths.enter)
    if settings.scratch is not None:
        shutil.rmtree(settings.scratch, ignore_errors=True)
    loading = asyncio.create_task(compute.run(PLATFORM, load, settings, lambda: _leave(loop, stopping)))
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    code = int(ExitCode.STOPPED)
    if loading.done():
        try:
            sessions = Sessions(loading.result(), compute, Store.of_process(), settings)
        except ProblemError as error:
            code = report_failure(error)
        else:
            server.sessions = sessions
            beating = asyncio.create_task(_beat(sessions))
            watching = asyncio.create_task(_watch_units(compute, settings))
            await waiting
            # The kubelet may end the process before its running unit ends.
            deaths.close()
            beating.cancel()
            watching.cancel()
            await _shut_down(sessions, settings)
    waiting.cancel()
    compute.close()
    await runner.cleanup()
    return code


def report_failure(error: ProblemError) -> ExitCode:
    """Log why the process cannot start, write the reason as the termination message, and return the exit code."""
    log.error("%s", error)
    write_termination_message(error.problem, termination_log())
    is_final = error.problem.reason in (Reason.DEVICE_MISSING, Reason.INVALID_CONFIGURATION)
    return ExitCode.CONFIGURATION if is_final else ExitCode.RESTART


def _make_server(order_path: Path | None, deaths: RunDeaths) -> Server:
    """Return the server for a single run, or for a shared pool with the mounted `TrainerOrder` applied. Raises
    ProblemError.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if order_path is None:
        return Server(token)
    runs = TrainedRuns(deaths)
    try:
        runs.apply(parse_received(TrainerOrder, order_path.read_bytes(), f"The order {order_path}", context=ADMITTED))
        return PoolServer(token, runs)
    except (OSError, ValueError) as error:
        raise ProblemError.of(UNPROCESSABLE, Reason.INVALID_CONFIGURATION, str(error)) from error


async def _shut_down(sessions: Sessions, settings: TrainerSettings) -> None:
    """Save last checkpoints and wait for uploads within `shutdown_seconds`, then stop the other processes.

    If the process is killed earlier, no incomplete artifact appears complete, because manifests are written last.
    """
    log.info("Shutting down; last checkpoints and uploads may take up to %.0f s", settings.shutdown_seconds)
    started = time.monotonic()

    def seconds_left() -> float:
        return settings.shutdown_seconds - (time.monotonic() - started)

    await sessions.rescue(seconds_left())
    lost = await sessions.drain(seconds_left())
    await sessions.stop(1.0)
    if steps := sessions.unsaved_steps():
        problem = checkpoint_lost(steps, settings.shutdown_seconds)
        log.warning("%s: %s", problem.reason, problem.message)
        write_termination_message(problem, termination_log())
    elif lost:
        log.warning("Incomplete uploads: %d. Their runs resume from the newest complete checkpoint.", lost)
    log.info("Shutdown took %.1f s", time.monotonic() - started)


def _leave(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Start the shutdown of this process, because another process of this trainer received SIGTERM."""

    def note() -> None:
        if not stopping.is_set():
            log.warning("Another process of this trainer received SIGTERM; shutting down all processes")
            stopping.set()

    loop.call_soon_threadsafe(note)


async def _beat(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await sessions.beat()


async def _watch_units(compute: Compute, settings: TrainerSettings) -> None:
    """End the process of a shared pool's trainer if a unit hangs, because all other runs wait for it. The deaths file
    then names the run of the unit.
    """
    while settings.order_path is not None:
        await asyncio.sleep(min(BEAT_SECONDS, settings.unit_seconds))
        if (seconds := compute.unit_seconds()) > settings.unit_seconds:
            log.error("A computation has been running for %.0f s; exiting, because the other runs are waiting", seconds)
            exit_with(ExitCode.RESTART)
