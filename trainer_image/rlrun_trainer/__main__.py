"""`python -m rlrun_trainer`: loads the model, serves until SIGTERM, and finishes the uploads.

Under torchrun the first process does this; the others load the model and run the commands that the first sends.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

# Spinning threads are fast only on idle cores. On cores shared with engine and environments, a step of 0.2 s took up
# to 20 s. Must be set before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from rlrun.constants import ExitCode
from rlrun.service.errors import ProblemError

from rlrun_trainer.model.base_model import BaseModel, load_base
from rlrun_trainer.model.loader import device_of
from rlrun_trainer.process import exit_with, read_settings, report_failure, serve
from rlrun_trainer.runtime.process_group import init_process_group
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor

log = logging.getLogger("rlrun_trainer")


def _load(settings: TrainerSettings) -> BaseModel:
    device = device_of(settings, int(os.environ.get("LOCAL_RANK", "0")))
    return load_base(settings, init_process_group(device.type))


def _load_backend(settings: TrainerSettings, on_leave: Callable[[], None]) -> CollectiveExecutor:
    return CollectiveExecutor(_load(settings), on_leave=on_leave)


def follow(settings: TrainerSettings) -> int:
    """Run the commands that the first process sends to this process. Returns the exit code."""
    stopping: list[int] = []
    # The first process stops the others once its uploads are done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stopping.append(number))
    try:
        base = _load(settings)
    except ProblemError as error:
        return report_failure(error)
    crew = CollectiveExecutor(base, leaving=lambda: bool(stopping))
    log.info("Process %d of %d is ready", base.world.rank, base.world.size)
    try:
        crew.follow()
    except RuntimeError as error:
        # A first process that stopped during a step cannot be distinguished from one that crashed.
        log.log(logging.INFO if stopping else logging.ERROR, "The first process exited: %s", error)
        return ExitCode.STOPPED if stopping else ExitCode.RESTART
    return ExitCode.COMPLETED


def main() -> None:
    """Run the first process or another process of the trainer, depending on the environment variable RANK."""
    settings = read_settings()
    leads = os.environ.get("RANK", "0") == "0"
    exit_with(asyncio.run(serve(settings, _load_backend)) if leads else follow(settings))


if __name__ == "__main__":
    main()
