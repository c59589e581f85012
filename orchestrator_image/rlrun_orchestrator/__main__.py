"""`python -m rlrun_orchestrator`: runs one attempt of the run in RLRUN_CONFIG.

Exit codes: 0 completed, 64 a configuration error that a restart would not resolve. Any other code requests another
attempt.
"""

import logging
import os

from pydantic import ValidationError
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.service.errors import FatalError
from rlrun.service.exit import termination_log
from rlrun.service.run_service import run_service
from rlrun.service.server import stop_event
from rlrun.storage.store import Store, StoreError

from rlrun_orchestrator.app import attempt
from rlrun_orchestrator.config import OrchestratorSettings

log = logging.getLogger("rlrun_orchestrator")


async def serve(settings: OrchestratorSettings) -> int:
    """Run the attempt and return its exit code. Raises FatalError if the configuration is invalid."""
    try:
        run, store = ResolvedRun.load(settings.config), Store.of_process()
    except (OSError, ValueError, StoreError) as error:
        where = f"{settings.config}: " if isinstance(error, OSError | ValidationError) else ""
        problem = Problem(reason=Reason.INVALID_CONFIGURATION, message=f"{where}{error}"[:2000])
        raise FatalError(problem, ExitCode.CONFIGURATION) from error
    return await attempt(run, settings, stop_event(), store)


def report(problem: Problem) -> None:
    """Write the termination message of an attempt that did not start. The message contains the run's status."""
    status = RunStatus(phase=RunPhase.failed, problem=problem)
    path = termination_log()
    try:
        path.write_text(status.model_dump_json(by_alias=True, exclude_none=True))
    except OSError as error:
        log.warning("could not write the termination message to %s: %s", path, error)


def main() -> None:
    """Run the attempt and exit the process with its exit code."""
    code = run_service("rlrun_orchestrator", OrchestratorSettings.from_environment, serve, report=report)
    logging.shutdown()
    # Threads that still wait for S3 must not delay the pod's termination.
    os._exit(code)


if __name__ == "__main__":
    main()
