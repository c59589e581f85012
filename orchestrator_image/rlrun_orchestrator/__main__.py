"""`python -m rlrun_orchestrator`: one attempt at the run in RLRUN_CONFIG.

Exit codes: 0 completed, 64 a mistake that a restart cannot mend, anything else: start me again.
"""

import asyncio
import logging
import os
import sys

from pydantic import ValidationError
from rlrun.artifacts.store import Store, StoreError
from rlrun.schema.resolved import ResolvedRun
from rlrun.schema.wire import Problem, RunPhase, RunStatus

from rlrun_orchestrator.answers import stop_event
from rlrun_orchestrator.app import attempt
from rlrun_orchestrator.errors import EXIT_CONFIGURATION
from rlrun_orchestrator.settings import Settings

log = logging.getLogger("rlrun_orchestrator")


def main() -> int:
    """Reads the configuration and runs; returns the exit code."""
    logging.basicConfig(
        level=os.environ.get("RLRUN_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stdout,
    )
    settings = Settings()
    try:
        settings = Settings.from_environment()
        run = ResolvedRun.load(settings.config)
        store = Store()
    except (OSError, ValueError, StoreError) as error:
        return _refuse(settings, error)

    async def running() -> int:
        return await attempt(run, settings, stop_event(), store)

    code = asyncio.run(running())
    logging.shutdown()
    # Threads that still talk to S3 must not hold up a pod that is being stopped.
    os._exit(code)


def _refuse(settings: Settings, error: Exception) -> int:
    where = f"{settings.config}: " if isinstance(error, OSError | ValidationError) else ""
    problem = Problem(reason="ConfigurationInvalid", message=f"{where}{error}"[:2000])
    log.error("%s", problem.message)
    status = RunStatus(phase=RunPhase.failed, max_steps=0, problem=problem)
    try:
        settings.termination_log.write_text(status.model_dump_json(by_alias=True, exclude_none=True))
    except OSError as failure:
        log.warning("no termination message: %s", failure)
    return EXIT_CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
