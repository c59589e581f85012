"""`python -m rlrun_orchestrator.sidecar`: serve until SIGTERM."""

import asyncio
import logging
import sys
from typing import NoReturn

import aiohttp
from aiohttp import web
from rlrun.artifacts.store import Store, StoreError
from rlrun.schema.wire import PolicyKind, Problem

from rlrun_orchestrator.answers import runner_of, stop_event
from rlrun_orchestrator.errors import EXIT_CONFIGURATION
from rlrun_orchestrator.sidecar.adapters import Adapters, Policies
from rlrun_orchestrator.sidecar.engine import Engine
from rlrun_orchestrator.sidecar.fallback import Fallback
from rlrun_orchestrator.sidecar.server import sidecar_app
from rlrun_orchestrator.sidecar.settings import SidecarSettings, settings_from
from rlrun_orchestrator.sidecar.weights import Weights
from rlrun_orchestrator.termination import write_termination_message

log = logging.getLogger("rlrun_orchestrator.sidecar")


async def serve(settings: SidecarSettings, store: Store) -> None:
    """Serve until SIGTERM."""
    stop = stop_event()
    async with aiohttp.ClientSession() as http:
        engine = Engine(http, settings.engine_url, settings.load_deadline)
        folder, deadline = settings.adapters_dir, settings.download_deadline
        adapters: Policies
        fallback = Fallback(http, store)
        if settings.policy_kind is PolicyKind.weights:
            adapters = Weights(engine, store, folder, deadline, fallback)
        else:
            adapters = Adapters(engine, store, folder, deadline, settings.unload_grace, fallback)
        runner = runner_of(sidecar_app(adapters, folder))
        await runner.setup()
        await web.TCPSite(runner, port=settings.sidecar_port).start()
        log.info(
            "sidecar on port %d for %s, which is brought %s",
            settings.sidecar_port,
            settings.engine_url,
            settings.policy_kind,
        )
        await stop.wait()
        await runner.cleanup()
        await adapters.close()


def main() -> None:
    """Run; settings that do not fit end the process with the reason in the termination message."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings, store = settings_from(), Store()
    except ValueError as error:
        _give_up(Problem(reason="InvalidConfiguration", message=str(error)))
    except StoreError as error:
        _give_up(error.problem)
    asyncio.run(serve(settings, store))


def _give_up(problem: Problem) -> NoReturn:
    log.error("%s: %s", problem.reason, problem.message)
    write_termination_message(problem)
    sys.exit(EXIT_CONFIGURATION)


if __name__ == "__main__":
    main()
