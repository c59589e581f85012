"""Groups that ended without an answer, as errored rollouts. The parent of the workers needs this without verifiers."""

import uuid

from rlrun.schema.wire import GroupRequest, Problem, RolloutResult


def timed_out(request: GroupRequest) -> Problem:
    """What every rollout of a group says that took longer than it may."""
    return Problem(
        reason="EnvironmentTimeout",
        message=f"the group did not end within {request.deadline_seconds:g} s: rollouts or reward functions hang, "
        "or the environment needs a larger compute size",
    )


def failed_rollouts(request: GroupRequest, problem: Problem) -> list[RolloutResult]:
    """One errored result per rollout asked for. Their ids are new: who sent which request is no longer known."""
    return [RolloutResult(rollout_id=uuid.uuid4().hex, reward=0.0, error=problem) for _ in range(request.rollouts)]
