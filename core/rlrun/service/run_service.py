"""Main function of a service process: settings, event loop, exit code."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError
from rlrun.service.exit import termination_log, write_termination_message

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Settings = TypeVar("Settings")


def run_service(
    name: str,
    load_settings: Callable[[Mapping[str, str]], Settings],
    serve: Callable[[Settings], Coroutine[Any, Any, int]],
    *,
    environ: Mapping[str, str] = os.environ,
    report: Callable[[Problem], None] | None = None,
) -> int:
    """Run the service until `serve` returns, and return its exit code.

    A FatalError raised by either function, or a ValueError raised by `load_settings`, is logged, written to the
    termination message and converted to an exit code. `report` replaces the function that writes this message.
    """

    def load() -> Settings:
        try:
            logging.basicConfig(level=environ.get("RLRUN_LOG_LEVEL", "INFO").upper(), format=LOG_FORMAT)
            return load_settings(environ)
        except ValueError as error:
            problem = Problem(reason=Reason.INVALID_CONFIGURATION, message=str(error))
            raise FatalError(problem, ExitCode.CONFIGURATION) from error

    return exit_code_of(lambda: asyncio.run(serve(load())), name, environ=environ, report=report)


def exit_code_of(
    work: Callable[[], int],
    name: str,
    *,
    environ: Mapping[str, str] = os.environ,
    report: Callable[[Problem], None] | None = None,
) -> int:
    """Return the result of `work`. A FatalError is logged and reported, and its exit code is returned."""
    try:
        return work()
    except FatalError as error:
        logging.getLogger(name).error("%s", error)
        if report is None:
            write_termination_message(error.problem, termination_log(environ))
        else:
            report(error.problem)
        return error.exit_code
