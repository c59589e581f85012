"""`python -m rlrun_adapter_sidecar.pools`: serves the policies of a shared pool's runs until SIGTERM."""

import asyncio
import logging
import sys
from concurrent.futures import ThreadPoolExecutor

import aiohttp
from rlrun.api.base.received import parse
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MAX_RUNS, PoolOrder
from rlrun.service.errors import FatalError, ProblemError
from rlrun.service.run_service import run_service
from rlrun.service.server import serving, stop_event
from rlrun.storage.store import Store, StoreError

from rlrun_adapter_sidecar.pools.pool_runs import PoolRuns
from rlrun_adapter_sidecar.pools.server import pool_app
from rlrun_adapter_sidecar.pools.settings import PoolSettings, settings_from

THREADS = 4 * MAX_RUNS
"""Maximum number of threads for S3 and the disk. While S3 does not respond, each run may occupy one with a manifest and
two with downloads; the download from the trainer needs another one.
"""

log = logging.getLogger("rlrun_adapter_sidecar.pools")


async def serve(settings: PoolSettings) -> int:
    """Serve until SIGTERM and return the exit code. Raises FatalError."""
    stop = stop_event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    try:
        order = parse(PoolOrder, settings.order_path.read_bytes(), f"The list of runs {settings.order_path}")
        store = Store.of_process()
    except (OSError, ValueError) as error:
        raise FatalError(
            Problem(reason=Reason.INVALID_CONFIGURATION, message=str(error)), ExitCode.CONFIGURATION
        ) from error
    except StoreError as error:
        raise FatalError(error.problem, ExitCode.CONFIGURATION) from error
    # Runs choose the URLs of trainers, so that session has no token, and expands no response.
    trainer_http = aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "identity"})
    async with aiohttp.ClientSession(headers=bearer(settings.token)) as engine_http, trainer_http:
        runs = PoolRuns(engine_http, trainer_http, store, settings)
        try:
            await runs.start(order)
        except ProblemError as error:
            raise FatalError(error.problem) from error
        async with serving(pool_app(runs, settings.adapters_dir, settings.token), settings.sidecar_port):
            log.info(
                "sidecar on port %d for engine %s: %s and %d runs",
                settings.sidecar_port,
                settings.engine_url,
                order.base,
                len(order.runs),
            )
            cleaning, stopped = asyncio.create_task(runs.keep_clean()), asyncio.create_task(stop.wait())
            await asyncio.wait({cleaning, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if cleaning.done():
                cleaning.result()
            cleaning.cancel()
        await runs.close()
    return ExitCode.STOPPED


if __name__ == "__main__":
    sys.exit(run_service("rlrun_adapter_sidecar.pools", settings_from, serve))
