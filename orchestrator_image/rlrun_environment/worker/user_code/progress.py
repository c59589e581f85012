"""Tracks the phase of each rollout and group, which error messages name."""

import contextvars
from dataclasses import dataclass

from rlrun.protocol.problem import Problem

from rlrun_environment.phases import WorkPhase


@dataclass
class WorkProgress:
    """Current phase of a rollout, or of a group as a whole."""

    phase: WorkPhase = WorkPhase.rollout


PROGRESS: contextvars.ContextVar[WorkProgress] = contextvars.ContextVar("progress")
"""Progress of the rollout or group whose code is running."""


def in_phase(phase: WorkPhase, problem: Problem) -> Problem:
    """Return the problem with the phase added to its message."""
    return problem.model_copy(update={"message": f"In the phase {phase}: {problem.message}"})
