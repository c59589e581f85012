"""`python -m rlrun_adapter_sidecar.serving`: serves deployed adapters until SIGTERM."""

import asyncio
import contextlib
import logging
import sys
from pathlib import Path

import aiohttp
from rlrun.api.base.received import parse
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import DesiredAdapters
from rlrun.service.errors import FatalError
from rlrun.service.run_service import run_service
from rlrun.service.server import serving, stop_event
from rlrun.storage.store import Store, StoreError

from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.serving.adapter_reconciler import AdapterReconciler
from rlrun_adapter_sidecar.serving.server import serving_app
from rlrun_adapter_sidecar.serving.settings import ServingSettings, settings_from

log = logging.getLogger("rlrun_adapter_sidecar.serving")


async def serve(settings: ServingSettings) -> int:
    """Serve until SIGTERM and return the exit code. Raises FatalError."""
    stop = stop_event()
    try:
        order = read_order(settings.order_path)
    except ValueError as error:
        problem = Problem(reason=Reason.INVALID_CONFIGURATION, message=str(error))
        raise FatalError(problem, ExitCode.CONFIGURATION) from error
    try:
        store = Store.of_process()
    except StoreError as error:
        raise FatalError(error.problem, ExitCode.CONFIGURATION) from error
    async with aiohttp.ClientSession(headers=bearer(settings.token)) as http:
        engine = Engine(http, settings.engine_url, settings.load_deadline)
        reconciler = AdapterReconciler(engine, store, settings, order, use_grant=store.use_grant)
        async with serving(serving_app(reconciler, settings.token), settings.sidecar_port):
            log.info(
                "sidecar on port %d for engine %s: %s and %d adapters",
                settings.sidecar_port,
                settings.engine_url,
                order.base,
                len(order.adapters),
            )
            reconciling = asyncio.create_task(reconciler.keep())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({reconciling, stopped}, return_when=asyncio.FIRST_COMPLETED)
            ended = reconciling.done()
            for task in (reconciling, stopped):
                task.cancel()
        await reconciler.close()
        if ended:
            reconciling.result()
        with contextlib.suppress(asyncio.CancelledError):
            await reconciling
    return ExitCode.STOPPED


def read_order(path: Path) -> DesiredAdapters:
    """Read the desired adapters from the mounted ConfigMap. Raises ValueError."""
    try:
        return parse(DesiredAdapters, path.read_bytes(), f"The list of adapters {path}")
    except OSError as error:
        raise ValueError(f"could not read the list of adapters {path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(run_service("rlrun_adapter_sidecar.serving", settings_from, serve))
