"""Phases of an environment's work, for error messages."""

from enum import StrEnum
from pathlib import Path


class WorkPhase(StrEnum):
    """Phase in which code or values of the environment failed."""

    load = "load"
    """Importing the module and calling `load_environment` or creating the taskset."""
    prepare = "prepare"
    """Preparing an example for a rollout: reading its row, and starting its programs and servers."""
    rollout = "rollout"
    """Running the rollout: requesting the policy's completions and running the environment's responses."""
    score = "score"
    """Computing rewards."""


def write_phase(socket: Path, phase: WorkPhase) -> None:
    """Write the worker's current phase to a file beside its socket, before the worker serves."""
    new = socket.with_suffix(".new-phase")
    new.write_text(phase)
    # A reader sees the previous phase or this one, never an empty file.
    new.replace(socket.with_suffix(".phase"))


def read_phase(socket: Path) -> WorkPhase:
    """Return the phase of a worker that does not serve yet: `load` if the worker has not written one."""
    try:
        with socket.with_suffix(".phase").open(encoding="utf-8") as file:
            return WorkPhase(file.read(16))
    except (OSError, ValueError):
        return WorkPhase.load
