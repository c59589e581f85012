"""Compares the time that a last checkpoint needs with the time available after SIGTERM."""

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

ADVICE = (
    "Increase terminationGracePeriodSeconds of the RLModel's trainer, or runs.terminationGracePeriodSeconds.trainer of "
    "the chart, or lower checkpoints.interval"
)


def exceeds_grace_period(
    step_seconds: float, checkpoint_seconds: float | None, shutdown_seconds: float
) -> Problem | None:
    """Return a problem if another step and another checkpoint with these durations would exceed the shutdown's
    time limit.

    `checkpoint_seconds` is None if no checkpoint is complete yet.
    """
    if checkpoint_seconds is None or step_seconds + checkpoint_seconds <= shutdown_seconds:
        return None
    return Problem(
        reason=Reason.CHECKPOINT_EXCEEDS_GRACE_PERIOD,
        message=f"the newest step took {step_seconds:.0f} s and the newest checkpoint {checkpoint_seconds:.0f} s, but "
        f"a trainer that is stopped has only {shutdown_seconds:.0f} s for both. If the node is drained or the pod is "
        f"preempted, the steps since the last complete checkpoint may be lost. {ADVICE}",
    )


def checkpoint_lost(steps: list[int], shutdown_seconds: float) -> Problem:
    """Return the problem to report if the trainer exits before the checkpoints of `steps` are complete."""
    named = ", ".join(map(str, sorted(steps)))
    return Problem(
        reason=Reason.CHECKPOINT_EXCEEDS_GRACE_PERIOD,
        message=f"the trainer was stopped and could not complete the checkpoint of step {named} within "
        f"{shutdown_seconds:.0f} s. Training resumes from the previous checkpoint. {ADVICE}",
    )
