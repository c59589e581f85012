"""`python -m rlrun_tinker`: serves the Tinker API until SIGTERM, using rlrun-server, trainers and engines."""

import asyncio
import logging
import sys
import time

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.authority_files import AuthorityFiles, end_on_change, follow_authorities
from rlrun.service.client import HttpClient
from rlrun.service.errors import FatalError
from rlrun.service.listening import allow_connections
from rlrun.service.run_service import run_service
from rlrun.service.server import stop_event
from rlrun_server.http.connection_limits import ConnectionLimits
from rlrun_server.http.serving import serving
from rlrun_server.runtime.certificate import Certificate, CertificateInvalid
from rlrun_server.runtime.log_format import format_lines

from rlrun_tinker.app import TinkerApi, probes_app, tinker_app
from rlrun_tinker.callers import Callers
from rlrun_tinker.engine_client import ENGINE_CONNECTIONS
from rlrun_tinker.engine_registry import EngineRegistry
from rlrun_tinker.metrics import CONNECTIONS, MAX_CONNECTIONS
from rlrun_tinker.pool_trainer_client import PoolTrainerClient
from rlrun_tinker.run_server import RunServer
from rlrun_tinker.settings import TinkerSettings, load_settings

log = logging.getLogger("rlrun_tinker")

SERVER_SECONDS = 15.0
"""Time limit of a request to rlrun-server, in seconds."""
SERVER_CONNECTIONS = 64
PROBE_CONNECTIONS = (64, 16)
"""Maximum number of connections to the port for probes and metrics, in total and per address."""
LEAVING_SECONDS = 3.0
"""Seconds between SIGTERM and the shutdown, so that the Service can remove this pod from its endpoints first."""


async def serve(settings: TinkerSettings) -> int:
    """Serve until SIGTERM and return the exit code. Raises FatalError if the configuration is invalid."""
    format_lines()
    stop = stop_event()
    try:
        certificate = None if settings.tls is None else Certificate(settings.tls)
    except CertificateInvalid as error:
        problem = Problem(reason=Reason.INVALID_CONFIGURATION, message=str(error))
        raise FatalError(problem, ExitCode.CONFIGURATION) from error
    if settings.server_authority is not None:
        end_on_change(AuthorityFiles([settings.server_authority]))
    # A client's connection may wait for a trainer over another one.
    total = min(settings.max_connections, allow_connections(2 * settings.max_connections + ENGINE_CONNECTIONS))
    limits = ConnectionLimits(total, settings.max_connections_per_address)
    CONNECTIONS.set_function(lambda: limits.count)
    MAX_CONNECTIONS.set(limits.total)
    callers = Callers(time.monotonic)
    http = HttpClient(SERVER_SECONDS, SERVER_CONNECTIONS, settings.trust())
    trainers = PoolTrainerClient()
    # Some connections stay free for requests that do not wait for results.
    max_requests = max(1, total * 3 // 4)
    server = RunServer(settings.server, http, callers)
    engines = EngineRegistry()
    api = TinkerApi(callers, server, trainers, time.monotonic, max_requests=max_requests, engines=engines)
    context = None if certificate is None else certificate.context
    try:
        async with (
            serving(tinker_app(api), settings.port, settings.tls_port, context, limits=limits),
            serving(
                probes_app(lambda: not stop.is_set()),
                settings.metrics_port,
                limits=ConnectionLimits(*PROBE_CONNECTIONS),
            ),
        ):
            log.info("rlrun-tinker listens on port %d", settings.port if certificate is None else settings.tls_port)
            following = None if certificate is None else asyncio.create_task(certificate.follow())
            await stop.wait()
            await asyncio.sleep(LEAVING_SECONDS)
            if following is not None:
                following.cancel()
            api.leave()
    finally:
        api.close()
        await trainers.close()
        await engines.close()
        await http.close()
    return ExitCode.COMPLETED


if __name__ == "__main__":
    follow_authorities()
    sys.exit(run_service("rlrun_tinker", load_settings, serve))
