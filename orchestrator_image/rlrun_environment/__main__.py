"""`python -m rlrun_environment`: serves one environment until SIGTERM."""

import asyncio
import logging
import sys

from rlrun.constants import ExitCode
from rlrun.protocol.environment import EnvironmentConfig
from rlrun.service.exit import write_termination_message
from rlrun.service.run_service import run_service
from rlrun.service.server import serving, stop_event

from rlrun_environment.package_installer import PackageError
from rlrun_environment.server import EnvironmentServer
from rlrun_environment.settings import EnvironmentProcessSettings, load_settings

CONNECTIONS = 4096
"""Maximum number of connections, one per group in progress. Request bodies take up to 0.5 GiB of the pod's memory."""

log = logging.getLogger("rlrun_environment")


async def serve(settings: tuple[EnvironmentConfig, EnvironmentProcessSettings]) -> int:
    """Serve until SIGTERM, or until the package cannot be downloaded. Returns the exit code."""
    config, process_settings = settings
    server = EnvironmentServer(config, process_settings)
    stop = stop_event()
    async with serving(server.app(), process_settings.port, connections=CONNECTIONS):
        log.info("Serving environment %s on port %d, workers: %d", config.id, process_settings.port, config.workers)
        prepare = asyncio.create_task(server.prepare())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({prepare, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if prepare.done():
                try:
                    await prepare
                except PackageError as error:
                    write_termination_message(error.problem, process_settings.termination_log)
                    return ExitCode.RESTART
            await stopping
            return ExitCode.STOPPED
        finally:
            prepare.cancel()
            await server.pool.close()


if __name__ == "__main__":
    sys.exit(run_service("rlrun_environment", load_settings, serve))
