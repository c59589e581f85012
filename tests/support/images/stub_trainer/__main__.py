"""Stub trainer: the trainer's server, sessions and artifacts, with a backend that needs no torch and starts at once.

The image copies this file over `rlrun_trainer/__main__.py`: the operator starts it as the real trainer.
"""

import asyncio
import os
from collections.abc import Callable

from rlrun_trainer.process import exit_with, read_settings, serve
from rlrun_trainer.runtime.settings import TrainerSettings

from tests.support.images.stub_trainer.agreement import Agreement
from tests.support.images.stub_trainer.backend import StubBackend

STEP_SECONDS = "RLRUN_STUB_STEP_SECONDS"
"""Variable with the shortest time of a step in seconds, for tests that do something during a run."""
MODEL_BYTES = 128 * 2**20
"""Memory in place of a model's, so that a limit that is too low ends this process as it ends the real one."""


class LoadedStub(StubBackend):
    """Backend that occupies memory like a model."""

    def __init__(self, settings: TrainerSettings, step_seconds: float) -> None:
        super().__init__(settings, step_seconds)
        self.agreement = Agreement(settings.model_dir)
        self.memory = b"\1" * MODEL_BYTES


def load(settings: TrainerSettings, on_leave: Callable[[], None]) -> StubBackend:
    """Load the backend. There is no other process that could leave."""
    return LoadedStub(settings, float(os.environ.get(STEP_SECONDS, "0")))


def main() -> None:
    """Serve until SIGTERM."""
    settings = read_settings()
    exit_with(asyncio.run(serve(settings, load)))


if __name__ == "__main__":
    main()
