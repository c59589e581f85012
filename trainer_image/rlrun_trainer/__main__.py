"""`python -m rlrun_trainer`: loads the model, serves until SIGTERM, finishes the uploads.

Under torchrun the first process does that; the others load the model and run the first one's commands.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# Spinning threads are fast on idle cores only: on cores shared with engine and environments, a step of 0.2 s took up to
# 20 s. Must be set before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from aiohttp import web
from rlrun.constants import ExitCode
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.service.errors import ProblemError
from rlrun.service.exit import termination_log, write_termination_message
from rlrun.storage.store import Store

from rlrun_trainer.model.base_model import BaseModel, load_base
from rlrun_trainer.model.loader import device_of
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.process_group import init_process_group
from rlrun_trainer.runtime.settings import TrainerSettings, parse
from rlrun_trainer.server.http_server import Server
from rlrun_trainer.sessions.collective_executor import BEAT_SECONDS, CollectiveExecutor
from rlrun_trainer.sessions.session_registry import Sessions

log = logging.getLogger("rlrun_trainer")

S3_THREADS = 64


async def serve(settings: TrainerSettings) -> int:
    """Run the first process and return its exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # An S3 that does not answer blocks threads of every session for minutes, and steps need threads too.
    loop.set_default_executor(ThreadPoolExecutor(S3_THREADS, thread_name_prefix="s3-caller"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(os.environ.get(TOKEN_VARIABLE))
    runner = web.AppRunner(server.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, settings.host, settings.port).start()
    log.info("Listening on port %d, %d threads", settings.port, settings.threads)
    compute = Compute()
    if settings.scratch is not None:
        shutil.rmtree(settings.scratch, ignore_errors=True)
    loading = asyncio.create_task(compute.run(_load, settings))
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    code = int(ExitCode.STOPPED)
    if loading.done():
        try:
            loaded = loading.result()
            server.sessions = Sessions(loaded, compute, Store.of_process(), settings, lambda: _leave(loop, stopping))
        except ProblemError as error:
            _last_words(error)
            code = ExitCode.RESTART
        else:
            beating = asyncio.create_task(_beat(server.sessions))
            await waiting
            beating.cancel()
            await _shut_down(server.sessions, settings)
    waiting.cancel()
    compute.close()
    await runner.cleanup()
    return code


async def _shut_down(sessions: Sessions, settings: TrainerSettings) -> None:
    """Save last checkpoints, wait for uploads and end the other processes, all within `shutdown_seconds`.

    An earlier end leaves no incomplete artifact, because manifests are written last.
    """
    log.info("Shutting down: up to %.0f s for last checkpoints and uploads", settings.shutdown_seconds)
    started = time.monotonic()

    def left() -> float:
        return settings.shutdown_seconds - (time.monotonic() - started)

    await sessions.rescue(left())
    lost = await sessions.drain(left())
    await sessions.stop(1.0)
    if lost:
        log.warning("%d uploads are incomplete. The run resumes from the newest complete checkpoint.", lost)
    log.info("Shutdown took %.1f s", time.monotonic() - started)


def _leave(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Shut down because another process of this trainer received SIGTERM."""

    def note() -> None:
        if not stopping.is_set():
            log.warning("Another process of this trainer received SIGTERM: shutting down all")
            stopping.set()

    loop.call_soon_threadsafe(note)


async def _beat(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await sessions.beat()


def _load(settings: TrainerSettings) -> BaseModel:
    device = device_of(settings.device, torch.cuda.is_available())
    return load_base(settings, init_process_group(device.type))


def follow(settings: TrainerSettings) -> int:
    """Run one of the other processes and return its exit code."""
    stopping: list[int] = []
    # The first process ends the others once its uploads are done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.append(number))
    try:
        base = _load(settings)
    except ProblemError as error:
        _last_words(error)
        return ExitCode.RESTART
    crew = CollectiveExecutor(base, leaving=lambda: bool(stopping))
    log.info("Process %d of %d is ready", base.world.rank, base.world.size)
    try:
        crew.follow()
    except RuntimeError as error:
        # A first process that stopped during a step is not distinguishable from one that crashed.
        log.log(logging.INFO if stopping else logging.ERROR, "The first process ended: %s", error)
        return ExitCode.STOPPED if stopping else ExitCode.RESTART
    return ExitCode.COMPLETED


def _last_words(error: ProblemError) -> None:
    log.error("%s", error)
    write_termination_message(error.problem, termination_log())


def main() -> None:
    """Run the process that the environment variable RANK selects."""
    settings = parse(sys.argv[1:])
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    leads = os.environ.get("RANK", "0") == "0"
    code = asyncio.run(serve(settings)) if leads else follow(settings)
    logging.shutdown()
    # The interpreter would wait for a step that still runs on the compute thread.
    os._exit(code)


if __name__ == "__main__":
    main()
