"""`python -m rlrun_orchestrator.serving`: serve until SIGTERM."""

import asyncio
import contextlib
import logging
import sys
from pathlib import Path
from typing import NoReturn

import aiohttp
from aiohttp import web
from pydantic import ValidationError
from rlrun.schema.serving import ServingOrder
from rlrun.schema.wire import Problem

from rlrun_orchestrator.answers import runner_of, stop_event
from rlrun_orchestrator.errors import EXIT_CONFIGURATION
from rlrun_orchestrator.serving.keeper import Keeper
from rlrun_orchestrator.serving.server import serving_app
from rlrun_orchestrator.serving.settings import ServingSettings, settings_from
from rlrun_orchestrator.serving.source import MountedStore
from rlrun_orchestrator.sidecar.engine import Engine
from rlrun_orchestrator.termination import write_termination_message

log = logging.getLogger("rlrun_orchestrator.serving")


async def serve(settings: ServingSettings, order: ServingOrder) -> None:
    """Serve until SIGTERM."""
    stop = stop_event()
    async with aiohttp.ClientSession() as http:
        engine = Engine(http, settings.engine_url, settings.load_deadline)
        keeper = Keeper(engine, MountedStore(settings.credentials_dir), settings, order)
        runner = runner_of(serving_app(keeper))
        await runner.setup()
        await web.TCPSite(runner, port=settings.sidecar_port).start()
        log.info(
            "sidecar on port %d for %s: %s and %d adapters",
            settings.sidecar_port,
            settings.engine_url,
            order.base,
            len(order.adapters),
        )
        keeping = asyncio.create_task(keeper.keep())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({keeping, stopped}, return_when=asyncio.FIRST_COMPLETED)
        ended = keeping.done()
        for task in (keeping, stopped):
            task.cancel()
        await runner.cleanup()
        await keeper.close()
        if ended:
            keeping.result()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping


def read_order(path: Path) -> ServingOrder:
    """What lies in the mounted ConfigMap. Raises ValueError."""
    try:
        return ServingOrder.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"the order {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ValueError(f"{path} is no order of this version: {error.errors()[0]['msg']}") from error


def main() -> None:
    """Run; what does not fit ends the process with the reason in the termination message."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = settings_from()
        order = read_order(settings.order_path)
    except ValueError as error:
        _give_up(Problem(reason="InvalidConfiguration", message=str(error)))
    asyncio.run(serve(settings, order))


def _give_up(problem: Problem) -> NoReturn:
    log.error("%s: %s", problem.reason, problem.message)
    write_termination_message(problem)
    sys.exit(EXIT_CONFIGURATION)


if __name__ == "__main__":
    main()
