"""`python -m rlrun_orchestrator.sidecar`: serve until SIGTERM."""

import logging
import sys

import aiohttp
from rlrun.artifacts.store import Store, StoreError
from rlrun.schema.wire import PolicyKind
from rlrun.service.errors import FatalError
from rlrun.service.exit import EXIT_COMPLETED, EXIT_CONFIGURATION
from rlrun.service.run_service import run_service
from rlrun.service.server import serving, stop_event

from rlrun_orchestrator.sidecar.adapters import Adapters, Policies
from rlrun_orchestrator.sidecar.engine import Engine
from rlrun_orchestrator.sidecar.fallback import Fallback
from rlrun_orchestrator.sidecar.server import sidecar_app
from rlrun_orchestrator.sidecar.settings import SidecarSettings, settings_from
from rlrun_orchestrator.sidecar.weights import Weights

log = logging.getLogger("rlrun_orchestrator.sidecar")


async def serve(settings: SidecarSettings) -> int:
    """Serve until SIGTERM and return the exit code. Raises FatalError."""
    stop = stop_event()
    try:
        store = Store()
    except StoreError as error:
        raise FatalError(error.problem, EXIT_CONFIGURATION) from error
    async with aiohttp.ClientSession() as http:
        engine = Engine(http, settings.engine_url, settings.load_deadline)
        folder, deadline = settings.adapters_dir, settings.download_deadline
        adapters: Policies
        fallback = Fallback(http, store)
        if settings.policy_kind is PolicyKind.weights:
            adapters = Weights(engine, store, folder, deadline, fallback)
        else:
            adapters = Adapters(engine, store, folder, deadline, settings.unload_grace, fallback)
        async with serving(sidecar_app(adapters, folder), settings.sidecar_port):
            log.info(
                "sidecar on port %d for %s, which is brought %s",
                settings.sidecar_port,
                settings.engine_url,
                settings.policy_kind,
            )
            await stop.wait()
        await adapters.close()
    return EXIT_COMPLETED


if __name__ == "__main__":
    sys.exit(run_service("rlrun_orchestrator.sidecar", settings_from, serve))
