"""Status of the run for the operator: at /status while the process runs, then in its termination message."""

import math
from collections.abc import Sequence

from rlrun.api.run_status import EnvironmentPackage
from rlrun.constants import Reason
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem

from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.status_conditions import StatusConditions

TERMINATION_BYTES = 4096
"""Maximum size in bytes of a termination message that the kubelet reads."""
MESSAGE_LIMIT = 500


def build_run_status(
    progress: RunProgress,
    conditions: StatusConditions,
    schedule: RunSchedule,
    packages: Sequence[EnvironmentPackage] = (),
) -> RunStatus:
    """Combine the progress of the run with its current conditions and the packages of its environments."""
    warnings = {problem.reason: problem for problem in (*_error_warnings(progress), *conditions.warnings)}
    return RunStatus(
        phase=progress.phase,
        step=progress.step,
        max_steps=schedule.max_steps,
        reward=progress.newest_reward,
        policy_version=progress.policy_version,
        eta_seconds=_eta_seconds(progress, schedule),
        last_step_time=progress.last_step_time,
        started_at=progress.started_at,
        mismatch_kl=progress.mismatch_kl,
        groups=progress.groups,
        reward_errors=progress.reward_errors,
        rollout_errors=progress.rollout_errors,
        waiting_for=conditions.waiting_for,
        environments=list(packages),
        warnings=list(warnings.values()),
        problem=progress.problem,
    )


def termination_message(status: RunStatus) -> bytes:
    """Return the status as JSON of at most 4096 bytes. If it is too long, packages and warnings are dropped and
    messages are shortened. If even that is not enough, the JSON is cut off.
    """
    shown = status.model_copy(deep=True)
    for limit in (None, 400, 100):
        if limit is not None:
            # The operator already knows the packages, which the run has reported since its start.
            shown.environments = []
            shown.warnings = shown.warnings[: 2 if limit > 100 else 0]
            for problem in (shown.problem, shown.waiting_for, *shown.warnings):
                if problem is not None:
                    problem.message = problem.message[:limit]
        text = shown.model_dump_json(by_alias=True, exclude_none=True).encode()
        if len(text) <= TERMINATION_BYTES:
            return text
    return text[:TERMINATION_BYTES]


def _eta_seconds(progress: RunProgress, schedule: RunSchedule) -> float | None:
    """Return the remaining seconds at the pace of the newest steps, or None if this process has observed no step."""
    if progress.phase is RunPhase.completed:
        return 0.0
    if not progress.step_seconds:
        return None
    return (schedule.max_steps - progress.step) * math.fsum(progress.step_seconds) / len(progress.step_seconds)


def _error_warnings(progress: RunProgress) -> list[Problem]:
    problems = []
    for reason, count, what, first in (
        (Reason.REWARD_FUNCTION_ERRORS, progress.reward_errors, "rewards", progress.first_reward_error),
        (Reason.ROLLOUT_ERRORS, progress.rollout_errors, "rollouts", progress.first_rollout_error),
    ):
        if first is not None:
            message = f"{count} {what} failed and are not trained on; first error: {first.reason}: {first.message}"
            problems.append(Problem(reason=reason, message=message[:MESSAGE_LIMIT]))
    return problems
