"""Nothing hangs for ever: each deadline is computed from timestamps in the status, so no restart forgets one."""

from datetime import datetime

from rlrun.controller.plan.draft import Draft
from rlrun.kube.conditions import seconds
from rlrun.schema.run import RLRunSpec
from rlrun.schema.wire import Problem


def missed_deadline(draft: Draft, spec: RLRunSpec, blocking: Problem | None) -> Problem | None:
    """The deadline that has passed, if any. `blocking` is what the run waits for now, if that is known."""
    status, now = draft.status, draft.now
    active = status.past_active_seconds + seconds(status.attempt_start_time, now)
    if spec.active_deadline_seconds is not None and active >= spec.active_deadline_seconds:
        return Problem(
            reason="ActiveDeadlineExceeded",
            message=f"the run was active for {spec.active_deadline_seconds} s (activeDeadlineSeconds). Its checkpoints "
            "are kept: start a new run with checkpointId to go on.",
        )
    if not draft.holds("Running"):
        if seconds(status.attempt_start_time, now) < spec.start_deadline_seconds:
            return None
        return _not_started(spec.start_deadline_seconds, blocking)
    if seconds(last_sign_of_progress(draft), now) >= spec.stall_deadline_seconds:
        waits = f" It waits for: {blocking.message}" if blocking else ""
        return Problem(
            reason="StallDeadlineExceeded",
            message=f"no step was finished for {spec.stall_deadline_seconds} s (stallDeadlineSeconds).{waits}",
        )
    return None


def last_sign_of_progress(draft: Draft) -> datetime | None:
    """When the newest step of this attempt was done, or the attempt began to run."""
    status = draft.status
    times = [
        draft.since("Running"),
        status.progress.last_step_time if status.progress else None,
        status.attempt_start_time,
    ]
    return max((t for t in times if t is not None), default=None)


def _not_started(limit: int, blocking: Problem | None) -> Problem:
    if blocking is None:
        return Problem(
            reason="StartDeadlineExceeded",
            message=f"the first step had not begun after {limit} s (startDeadlineSeconds): look at the conditions and "
            "the pods' logs, or raise the deadline.",
        )
    if blocking.reason == "Starting":
        return Problem(
            reason="StartDeadlineExceeded",
            message=f"the first step had not begun after {limit} s (startDeadlineSeconds). {blocking.message}",
        )
    return Problem(
        reason=blocking.reason, message=f"not started within {limit} s (startDeadlineSeconds): {blocking.message}"
    )
