"""`python -m rlrun_orchestrator.environment`: serves one environment until SIGTERM."""

import asyncio
import logging
import sys

from aiohttp import web
from rlrun.schema.environment_protocol import EnvironmentConfig
from rlrun.schema.wire import Problem

from rlrun_orchestrator.answers import runner_of, stop_event
from rlrun_orchestrator.environment.packages import PackageError
from rlrun_orchestrator.environment.server import EnvironmentServer
from rlrun_orchestrator.environment.settings import Surroundings, settings_from
from rlrun_orchestrator.errors import EXIT_CONFIGURATION, EXIT_RESTART
from rlrun_orchestrator.termination import write_termination_message

log = logging.getLogger("rlrun_orchestrator.environment")


async def serve(config: EnvironmentConfig, surroundings: Surroundings) -> int:
    """Serve until SIGTERM and return the exit status."""
    server = EnvironmentServer(config, surroundings)
    stop = stop_event()
    runner = runner_of(server.app())
    await runner.setup()
    await web.TCPSite(runner, port=surroundings.port).start()
    log.info("environment %s on port %d with %d workers", config.id, surroundings.port, config.workers)
    prepare = asyncio.create_task(server.prepare())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({prepare, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if prepare.done():
            try:
                await prepare
            except PackageError as error:
                write_termination_message(error.problem, surroundings.termination_log)
                return EXIT_RESTART
        await stopping
        return 0
    finally:
        prepare.cancel()
        await server.pool.close()
        await runner.cleanup()


def main() -> None:
    """Run the server. An invalid variable ends the process with the reason in the termination message."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config, surroundings = settings_from()
    except ValueError as error:
        log.error("%s", error)
        write_termination_message(Problem(reason="InvalidConfiguration", message=str(error)))
        sys.exit(EXIT_CONFIGURATION)
    sys.exit(asyncio.run(serve(config, surroundings)))


if __name__ == "__main__":
    main()
