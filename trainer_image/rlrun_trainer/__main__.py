"""`python -m rlrun_trainer`: listen, load the model, serve until SIGTERM, finish the uploads.

Under torchrun one process does that; the others load the model and follow.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# Threads that spin while they wait for each other are fast on idle cores only: on cores shared with the engine and the
# environments a step of 0.2 s was seen to take 20 s. Has to be known before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from aiohttp import web
from rlrun.artifacts.store import Store
from rlrun.service.errors import ProblemError

from rlrun_trainer.compute import Compute
from rlrun_trainer.crew import BEAT_SECONDS, Crew
from rlrun_trainer.distributed import join
from rlrun_trainer.loading import device_of
from rlrun_trainer.server import Server
from rlrun_trainer.sessions import Sessions
from rlrun_trainer.settings import Settings, parse
from rlrun_trainer.slots import BaseModel, load_base

log = logging.getLogger("rlrun_trainer")

S3_THREADS = 64
TERMINATION_LOG = os.environ.get("RLRUN_TERMINATION_LOG", "/dev/termination-log")


async def serve(settings: Settings) -> int:
    """Runs the trainer; returns the exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # An S3 that is silent keeps a few threads of every session for minutes, and steps need one as well.
    loop.set_default_executor(ThreadPoolExecutor(S3_THREADS, thread_name_prefix="s3-caller"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server()
    runner = web.AppRunner(server.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, settings.host, settings.port).start()
    log.info("listening on port %d, %d threads", settings.port, settings.threads)
    compute = Compute()
    if settings.scratch is not None:
        shutil.rmtree(settings.scratch, ignore_errors=True)
    loading = asyncio.create_task(compute.run(_load, settings))
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if loading.done():
        try:
            loaded = loading.result()
            left_by = asyncio.Event()
            server.sessions = Sessions(loaded, compute, Store(), settings, lambda: _leave(loop, left_by, stopping))
        except ProblemError as error:
            _last_words(error)
            code = 1
        else:
            beating = asyncio.create_task(_beat(server.sessions))
            await waiting
            beating.cancel()
            await _shut_down(server.sessions, settings)
            # A Job takes 0 for the end of the run, and a node that was drained is none.
            code = 1 if left_by.is_set() else 0
    waiting.cancel()
    compute.close()
    await runner.cleanup()
    return code


async def _shut_down(sessions: Sessions, settings: Settings) -> None:
    """Saves what no checkpoint holds, waits for the uploads, and lets the other processes go; all of it within
    `shutdown_seconds`. Whatever ends this earlier leaves nothing half: manifests are written last.
    """
    log.info("stopping: up to %.0f s for a last checkpoint and for uploads", settings.shutdown_seconds)
    started = time.monotonic()

    def left() -> float:
        return settings.shutdown_seconds - (time.monotonic() - started)

    await sessions.rescue(left())
    lost = await sessions.drain(left())
    await sessions.stop(1.0)
    if lost:
        log.warning("%d uploads are lost; the newest complete checkpoint is the one to resume from", lost)
    log.info("stopped after %.1f s", time.monotonic() - started)


def _leave(loop: asyncio.AbstractEventLoop, left_by: asyncio.Event, stopping: asyncio.Event) -> None:
    """Another process of this trainer was told to stop: nothing goes on without it."""

    def note() -> None:
        if not stopping.is_set():
            log.warning("another process of this trainer was told to stop, and so all stop")
            left_by.set()
            stopping.set()

    loop.call_soon_threadsafe(note)


async def _beat(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        await sessions.beat()


def _load(settings: Settings) -> BaseModel:
    device = device_of(settings.device, torch.cuda.is_available())
    return load_base(settings, join(device.type))


def follow(settings: Settings) -> int:
    """What a process does that does not lead; returns the exit code."""
    stopping: list[int] = []
    # The one that leads ends the others, once its uploads are done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.append(number))
    try:
        base = _load(settings)
    except ProblemError as error:
        _last_words(error)
        return 1
    crew = Crew(base, leaving=lambda: bool(stopping))
    log.info("process %d of %d is ready", base.world.rank, base.world.size)
    try:
        crew.follow()
    except RuntimeError as error:
        # The connection of one that stopped in the middle of a step looks like that of one that crashed.
        log.log(logging.INFO if stopping else logging.ERROR, "the process that leads is gone: %s", error)
        return 0 if stopping else 1
    return 0


def _last_words(error: ProblemError) -> None:
    log.error("%s", error)
    try:
        with open(TERMINATION_LOG, "w", encoding="utf-8") as file:
            file.write(error.problem.model_dump_json(by_alias=True)[:4096])
    except OSError as failure:
        log.warning("no termination message: %s", failure)


def main() -> None:
    """Entry point."""
    settings = parse(sys.argv[1:])
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    leads = os.environ.get("RANK", "0") == "0"
    code = asyncio.run(serve(settings)) if leads else follow(settings)
    logging.shutdown()
    # A step that still runs on the compute thread cannot be stopped, and the interpreter would wait for it.
    os._exit(code)


if __name__ == "__main__":
    main()
