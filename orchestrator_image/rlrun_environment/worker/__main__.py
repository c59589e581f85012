"""Worker process: loads the environment, then serves groups on a Unix socket until its parent exits.

    python -m rlrun_environment.worker <socket> --folder <folder> --version <version>

The environment's configuration is in `RLRUN_ENVIRONMENT`. The server gets the result of loading from GET /info.
"""

import argparse
import asyncio
import logging
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from rlrun.constants import Reason
from rlrun.protocol.environment import (
    MAX_REQUEST_BYTES,
    DemonstrationRequest,
    EnvironmentConfig,
    EnvironmentInfo,
    GroupRequest,
)
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun.service.listening import MANY_CONNECTIONS
from rlrun.service.server import LimitedRunner, json_response, problem_middleware, read_model, stop_event

from rlrun_environment.phases import WorkPhase, write_phase
from rlrun_environment.worker.example_play import play_example
from rlrun_environment.worker.loading import load
from rlrun_environment.worker.runner import Runner
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import EnvironmentForm, Loaded

log = logging.getLogger(__name__)

NICENESS = 10
"""Nice value of workers and their child processes. The server in the same container has 0; other pods are not affected.
"""


@dataclass(frozen=True)
class Arguments:
    """Command line of the worker."""

    socket: Path
    folder: Path
    version: str
    play: bool


def runner_for(loaded: Loaded, folder: Path) -> Runner:
    """Return the runner for the environment. Imports verifiers and openai, which is slow, only if needed."""
    if loaded.form is EnvironmentForm.taskset:
        from rlrun_environment.worker.tasksets.taskset_runner import TasksetRunner

        return TasksetRunner(loaded, folder)
    if loaded.form is EnvironmentForm.plain:
        from rlrun_environment.worker.plain_runner import PlainRunner

        return PlainRunner(loaded, folder)
    from rlrun_environment.worker.verifiers_runner import VerifiersRunner

    return VerifiersRunner(loaded, folder)


def main() -> None:
    """Load the environment in the main thread, where verifiers sets signal handlers, and then serve."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s worker %(levelname)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpx2", "httpcore", "openai"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    _die_with_parent()
    # The server must get CPU time to detect and kill user code that keeps all processors of the container busy.
    os.nice(NICENESS)
    arguments = _arguments(sys.argv[1:])
    config = EnvironmentConfig.from_variables(os.environ)
    loaded: Loaded | None = None
    problem: Problem | None = None
    try:
        loaded = load(config, arguments.folder)
    except LoadError as error:
        problem = error.problem
    # Returning from main runs the environment's teardown, which verifiers has registered with atexit. The signal
    # handlers of verifiers would run the teardown inside the event loop, so `stop_event` replaces them.
    asyncio.run(_serve(arguments, config, loaded, problem))


def _arguments(arguments: Sequence[str]) -> Arguments:
    parser = argparse.ArgumentParser(prog="python -m rlrun_environment.worker")
    parser.add_argument("socket", type=Path, help="Unix socket to serve on")
    parser.add_argument("--folder", type=Path, required=True, help="folder where the package is installed")
    parser.add_argument("--version", default="", help="installed version of the package, to report")
    parser.add_argument("--play", action="store_true", help="run an example before the environment is ready")
    return Arguments(**vars(parser.parse_args(arguments)))


async def _serve(
    arguments: Arguments, config: EnvironmentConfig, loaded: Loaded | None, problem: Problem | None
) -> None:
    stop = stop_event()
    groups = runner_for(loaded, arguments.folder) if loaded is not None else None
    if loaded is not None and groups is not None:
        try:
            write_phase(arguments.socket, WorkPhase.prepare)
            await groups.check_example()
            if arguments.play:
                write_phase(arguments.socket, WorkPhase.rollout)
                await play_example(groups, loaded)
        except LoadError as error:
            await groups.close()
            loaded, groups, problem = None, None, error.problem
    info = EnvironmentInfo(
        name=config.name or config.package,
        id=config.id,
        version=arguments.version or None,
        ready=loaded is not None,
        problem=problem,
        train_examples=loaded.train_examples if loaded else 0,
        eval_examples=loaded.eval_examples if loaded else 0,
        rollouts_at_once=groups.rollouts_at_once if groups is not None else None,
    )

    async def get_info(_: web.Request) -> web.Response:
        return json_response(info)

    async def post_group(request: web.Request) -> web.Response:
        if groups is None:
            raise ProblemError(503, problem or Problem(reason=Reason.ENVIRONMENT_LOAD_FAILED, message="not loaded"))
        return json_response(await groups.run(await read_model(request, GroupRequest)))

    async def post_demonstration(request: web.Request) -> web.Response:
        if groups is None:
            raise ProblemError(503, problem or Problem(reason=Reason.ENVIRONMENT_LOAD_FAILED, message="not loaded"))
        return json_response(await groups.demonstrate(await read_model(request, DemonstrationRequest)))

    app = web.Application(middlewares=[problem_middleware], client_max_size=MAX_REQUEST_BYTES)
    app.add_routes([web.get("/info", get_info), web.post("/groups", post_group)])
    app.add_routes([web.post("/demonstrations", post_demonstration)])
    runner = LimitedRunner(app, connections=MANY_CONNECTIONS)
    await runner.setup()
    await web.UnixSite(runner, str(arguments.socket)).start()
    await stop.wait()
    await runner.cleanup()
    if groups is not None:
        await groups.close()


def _die_with_parent() -> None:
    # The parent holds the other end of stdin, which closes when the parent exits for any reason.
    parent = os.dup(0)
    # Code of the environment that reads input, such as a key, must not wait for input that never arrives.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        while os.read(parent, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
