"""Attempts of a run: start, restart, deadlines, progress, and time of the next reconcile.

Changes of a run's objects, pods and orchestrator status trigger reconciles. Completed uploads and deadlines do not, so
a run with an attempt is also reconciled periodically. A run whose pods do not start is reconciled less often the longer
it waits.
"""

import math
import zlib
from dataclasses import replace
from datetime import datetime, timedelta

from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.environments import DEFAULT_ROLLOUT_TIMEOUT
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import Driver, Reason
from rlrun.kube.conditions import find_condition, seconds
from rlrun.kube.events import EventRecord
from rlrun.kube.pods import relevant_pods
from rlrun.protocol.environment import ROLLOUT_SHARE
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.artifacts import UploadSchedule
from rlrun_operator.planning.children import active_workloads
from rlrun_operator.planning.client_sessions import session_change
from rlrun_operator.planning.ending import NOT_FINISHED, delete_workloads, mark_finished, with_active_time
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.pod_failures import expired_startup_failure
from rlrun_operator.planning.readiness import (
    CONDITION_OF,
    STARTING_REASONS,
    blocking_problem,
    closed_readiness,
    has_started,
    progress_change,
    warning_conditions,
)
from rlrun_operator.planning.resolution import config_error, frozen_config, has_signed_references, readable_config
from rlrun_operator.planning.status import is_true, reason_fields, transition_time

FIRST_SECONDS = 10
MAX_SECONDS = 300
STABLE_SECONDS = 600
"""Running time in seconds after which an attempt is considered stable and the back-off is reset."""


def next_backoff(last_wait: int, ran: float) -> int:
    """Return the seconds to wait after an attempt that waited `last_wait` seconds before it ran for `ran` seconds."""
    if last_wait <= 0 or ran >= STABLE_SECONDS:
        return FIRST_SECONDS
    return min(2 * last_wait, MAX_SECONDS)


def next_restart(status: RLRunStatus, now: datetime) -> tuple[int, datetime]:
    """Return the seconds for which the next attempt waits, and its start time."""
    ran = seconds(transition_time(status, "Running"), now) if is_true(status, "Running") else 0.0
    wait = next_backoff(status.restart_backoff_seconds, ran)
    return wait, now + timedelta(seconds=wait)


def remaining_wait(status: RLRunStatus, now: datetime) -> float:
    """Return the seconds until the next attempt may start, or 0 if no attempt waits or the clock was set back."""
    due, wait = status.next_restart_time, status.restart_backoff_seconds
    left = 0.0 if due is None else (due - now).total_seconds()
    return left if 0.0 < left <= wait else 0.0


def begin_attempt(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Start an attempt if none is active."""
    return PlanPart(status=attempt_start(status, now)) if status.attempt_start_time is None else None


def attempt_start(status: RLRunStatus, now: datetime) -> StatusChange:
    """Return the change that starts the first or the next attempt."""
    first = status.start_time is None
    return StatusChange(
        (ConditionChange("Running", False, Reason.STARTING),),
        {
            "start_time": now if first else status.start_time,
            "attempt": status.attempt if first else status.attempt + 1,
            "attempt_start_time": now,
            "next_restart_time": None,
            "components": [],
        },
    )


def attempt_withdrawn(status: RLRunStatus) -> StatusChange:
    """Return the change that reverts the start of an attempt that has created nothing. The next attempt reuses its
    number.
    """
    is_first = status.attempt == 1
    return StatusChange(
        fields={
            "start_time": None if is_first else status.start_time,
            "attempt": 1 if is_first else status.attempt - 1,
            "attempt_start_time": None,
        }
    )


def plan_restart(
    observation: RunObservation,
    status: RLRunStatus,
    settings: OperatorSettings,
    now: datetime,
    problem: Problem,
    *,
    counts_toward_max: bool,
) -> PlanPart:
    """End this attempt. The next attempt starts after a pause, when the pods have terminated."""
    wait, due = next_restart(status, now)
    when = f"Attempt {status.attempt + 1} starts at {due:%Y-%m-%dT%H:%M:%SZ}, in {wait} s"
    message = f"{when}, after {problem.reason}: {problem.message}"
    change = StatusChange(
        (
            ConditionChange("Running", False, Reason.RESTARTING, problem.message),
            *closed_readiness(status, Reason.RESTARTING, None),
        ),
        {
            "phase": Phase.pending,
            "restart_backoff_seconds": wait,
            "next_restart_time": due,
            "run_restarts": status.run_restarts + 1,
            "run_restarts_toward_max": status.run_restarts_toward_max + counts_toward_max,
            "restarts": status.restarts + 1,
            **with_active_time(status, now),
            "attempt_start_time": None,
            **reason_fields(Problem(reason=Reason.RESTARTING, message=message)),
        },
    )
    restart = PlanPart(
        status=change,
        events=(EventRecord(Reason.RUN_RESTARTING, message, warning=True),),
        requeue_after=min(settings.poll_seconds, wait),
        status_first=True,
        discard_writes=True,
        final=True,
    )
    return delete_workloads(observation, settings, active_workloads(observation)).then(restart)


def restart_with_unreadable_configuration(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """End an attempt whose configuration cannot be used.

    This applies to an attempt with pods but without a readable configuration, because a new configuration could differ
    from the one that its pods use. It also applies to a run with `driver: Client` whose configuration lacks the
    operator's signature, because the trainer gets no session from such a configuration.
    """
    attempt = status.attempt
    configs = observation.owned_children("ConfigMap", attempt=attempt)
    if not configs:
        return None
    known = readable_config(configs[0])
    if known is not None and spec.driver is Driver.client and not has_signed_references(observation, attempt, known):
        problem = Problem(
            reason=Reason.CONFIGURATION_UNREADABLE,
            message=(
                f"The ConfigMap {configs[0]['metadata']['name']} does not have the operator's signature: it was "
                "changed, or the signing key was replaced. The next attempt gets a new ConfigMap."
            ),
        )
        return plan_restart(observation, status, settings, now, problem, counts_toward_max=False)
    if not observation.pod_controllers(attempt) or known is not None:
        return None
    problem = Problem(
        reason=Reason.CONFIGURATION_UNREADABLE,
        message=(
            f"The operator cannot read the ConfigMap {configs[0]['metadata']['name']}, which was changed or written "
            f"by another version of the operator: {config_error(configs[0]).rstrip('.')}. The next attempt gets a new "
            "ConfigMap."
        ),
    )
    return plan_restart(observation, status, settings, now, problem, counts_toward_max=False)


def plan_restart_wait(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Wait until the next attempt is due. The status already contains the reason."""
    left = remaining_wait(status, now)
    if left <= 0:
        return None
    wait = PlanPart(
        status=StatusChange(NOT_FINISHED, {"phase": Phase.pending}),
        requeue_after=min(settings.poll_seconds, left),
        final=True,
    )
    return delete_workloads(observation, settings, active_workloads(observation)).then(wait)


WAITING_SECONDS = 20.0
"""Maximum seconds between two reconciles of a run that does not start."""
WAITING_SHARE = 0.1
"""Pause between two reconciles of a run that does not start, as a share of the time since the start of the attempt.
Limits of the failure policy are enforced late by at most this share.
"""


def enforce_deadlines(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Fail a run that exceeds one of its deadlines."""
    current = relevant_pods(observation.pods_of(status.attempt))
    expired = expired_startup_failure(spec.failure_policy, status.components, current, now, observation.pod_events)
    expired = expired or expired_deadline(status, spec, now, blocking_problem(status))
    if expired is None:
        return None
    failed = mark_finished(observation, status, settings, now, Phase.failed, expired)
    return replace(failed, discard_writes=True)


def plan_waiting(
    observation: RunObservation,
    status: RLRunStatus,
    spec: RLRunSpec,
    settings: OperatorSettings,
    now: datetime,
    problem: Problem,
) -> PlanPart:
    """Wait until `problem` is resolved or a deadline expires."""
    expired = expired_deadline(status, spec, now, problem)
    if expired is not None:
        return mark_finished(observation, status, settings, now, Phase.failed, expired)
    running = is_true(status, "Running")
    conditions = () if running else (ConditionChange("Running", False, problem.reason), *_not_started_yet(status))
    phase = Phase.running if running else Phase.pending
    change = StatusChange((*conditions, *NOT_FINISHED), {"phase": phase, **reason_fields(problem)})
    again = settings.poll_seconds if running else waiting_pause(status, spec, settings, now)
    return PlanPart(status=change, requeue_after=again, final=True)


def waiting_pause(status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime) -> float:
    """Return the seconds until the next reconcile of an attempt that has not trained yet. The pause grows with the
    attempt's age.
    """
    waited = seconds(status.attempt_start_time, now)
    left = min(spec.start_deadline_seconds - waited, _active_seconds_left(status, spec, now))
    return max(settings.poll_seconds, min(WAITING_SECONDS, WAITING_SHARE * waited, left))


def expired_deadline(status: RLRunStatus, spec: RLRunSpec, now: datetime, blocking: Problem | None) -> Problem | None:
    """Return the problem to report for the expired deadline, or None if no deadline has expired. `blocking` is the
    problem that the run waits for.
    """
    if _active_seconds_left(status, spec, now) <= 0:
        return Problem(
            reason=Reason.ACTIVE_DEADLINE_EXCEEDED,
            message=f"The run was active for {spec.active_deadline_seconds} s (`spec.activeDeadlineSeconds`). Its "
            "checkpoints are kept. To continue, start a new run with `spec.checkpointId`.",
        )
    if not is_true(status, "Running"):
        if seconds(status.attempt_start_time, now) < spec.start_deadline_seconds:
            return None
        return _not_started(spec.start_deadline_seconds, blocking)
    if _step_seconds_left(status, spec, now) <= 0:
        cause = f" Cause: {blocking.message}" if blocking else " See the logs of the pods, or raise the deadline."
        return Problem(
            reason=Reason.STALL_DEADLINE_EXCEEDED,
            message=f"No step finished within {spec.stall_deadline_seconds} s (`spec.stallDeadlineSeconds`).{cause}",
        )
    return None


def seconds_to_deadline(status: RLRunStatus, spec: RLRunSpec, now: datetime) -> float:
    """Return the seconds until the first deadline of a running attempt, or infinity if it has no deadline."""
    return min(_active_seconds_left(status, spec, now), _step_seconds_left(status, spec, now))


def _active_seconds_left(status: RLRunStatus, spec: RLRunSpec, now: datetime) -> float:
    if spec.active_deadline_seconds is None:
        return math.inf
    return spec.active_deadline_seconds - status.past_active_seconds - seconds(status.attempt_start_time, now)


def _step_seconds_left(status: RLRunStatus, spec: RLRunSpec, now: datetime) -> float:
    if spec.driver is Driver.client:
        # The client's program decides when to take a step. If it makes no calls at all, the run is suspended.
        return math.inf
    limit = spec.stall_deadline_seconds + _last_evaluation(status, spec)
    return limit - seconds(last_progress_time(status), now)


def _last_evaluation(status: RLRunStatus, spec: RLRunSpec) -> float:
    """Return the seconds to add to the stall deadline for the evaluation after the last step.

    The result is 0 before the last step, and unless a rollout timeout of the evaluation exceeds the default.
    """
    if spec.eval is None or status.progress is None or status.progress.step < spec.max_steps:
        return 0.0
    longest = max((entry.rollout_timeout_seconds for entry in spec.eval.env), default=DEFAULT_ROLLOUT_TIMEOUT)
    return max(0.0, (longest - DEFAULT_ROLLOUT_TIMEOUT) / ROLLOUT_SHARE)


def last_progress_time(status: RLRunStatus) -> datetime | None:
    """Return the time of the attempt's newest step, or of its start."""
    times = [
        transition_time(status, "Running"),
        status.progress.last_step_time if status.progress else None,
        status.attempt_start_time,
    ]
    return max((t for t in times if t is not None), default=None)


def _not_started_yet(status: RLRunStatus) -> tuple[ConditionChange, ...]:
    unknown = (kind for kind in CONDITION_OF.values() if find_condition(status, kind) is None)
    return tuple(ConditionChange(kind, False, Reason.NOT_STARTED) for kind in unknown)


def _not_started(limit: int, blocking: Problem | None) -> Problem:
    what = f"The first step did not start within {limit} s (`spec.startDeadlineSeconds`)"
    if blocking is not None and blocking.reason not in STARTING_REASONS:
        return Problem(reason=blocking.reason, message=f"{what}: {blocking.message}")
    advice = "Check the conditions and the logs of the pods, or raise the deadline."
    message = f"{what}. {advice if blocking is None else blocking.message}"
    return Problem(reason=Reason.START_DEADLINE_EXCEEDED, message=message)


QUIET_SECONDS = 60.0
"""Seconds, plus or minus 25 %, between two reconciles of a run in which nothing happens."""
UPLOAD_TIME = timedelta(minutes=5)
"""Time after a step during which S3 is listed often to find the step's checkpoint and adapter. Later reconciles find
late uploads.
"""


def seconds_to_next_reconcile(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> float:
    """Return the seconds until the next reconcile of the run if no event occurs."""
    soon, problem = settings.poll_seconds, blocking_problem(status)
    is_quiet = (
        observation.is_watched
        and observation.artifacts_problem is None
        and is_true(status, "Running")
        and (problem is None or is_unreachable(observation, problem))
        and not awaits_upload(observation, status, spec, settings, now)
    )
    if is_quiet:
        return quiet_pause(observation, status, spec, settings, now)
    if waits_for_pods(observation, status):
        return waiting_pause(status, spec, settings, now)
    return soon


def quiet_pause(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> float:
    """Return the seconds until the next reconcile of a running attempt whose changes cause reconciles."""
    pause = QUIET_SECONDS * spread(observation.uid)
    return max(settings.poll_seconds, min(pause, seconds_to_deadline(status, spec, now)))


def spread(uid: str) -> float:
    """Return a factor from 0.75 to 1.25 for the run's pauses, so that runs that started at the same time are
    reconciled at different times. The factor of a run is constant.
    """
    return 0.75 + 0.5 * zlib.crc32(uid.encode()) / 2**32


def is_unreachable(observation: RunObservation, problem: Problem) -> bool:
    """Return whether the orchestrator does not respond. Its first response causes a reconcile."""
    return observation.poll_error is not None and problem.reason == Reason.ORCHESTRATOR_UNREACHABLE


def waits_for_pods(observation: RunObservation, status: RLRunStatus) -> bool:
    """Return whether an attempt waits for its pods: it has not trained and its orchestrator has not responded."""
    is_polled = observation.poll_error is not None and not observation.is_watched
    is_unknown = is_polled or observation.artifacts_problem is not None
    return not is_unknown and observation.poll is None and not is_true(status, "Running")


def awaits_upload(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> bool:
    """Return whether the newest due checkpoint or adapter is not in S3 yet, and the run's last step ended at most
    UPLOAD_TIME ago.
    """
    progress = status.progress
    if progress is None or progress.last_step_time is None or now - progress.last_step_time > UPLOAD_TIME:
        return False
    schedule = UploadSchedule.of(spec, frozen_config(observation, status.attempt), settings)
    return schedule.is_upload_due(observation.catalog, progress.step)


def report_progress(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Report the progress and warnings of the orchestrator or the client's session, and the start of the first step."""
    if spec.driver is Driver.client:
        return PlanPart(status=session_change(status, observation.client, now))
    report, change = observation.poll, StatusChange()
    if report is not None:
        change = StatusChange(warning_conditions(status, report), progress_change(status, report, now))
    if report is not None and has_started(report):
        change = change.then(StatusChange((ConditionChange("Running", True, Reason.RUNNING),)))
    elif not is_true(status, "Running"):
        change = change.then(StatusChange((ConditionChange("Running", False, Reason.STARTING),)))
    return PlanPart(status=change)


def report_phase(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Report the phase of the run and its reason."""
    blocking = blocking_problem(status)
    phase = Phase.running if is_true(status, "Running") else Phase.pending
    change = StatusChange(NOT_FINISHED, {"phase": phase, **reason_fields(blocking)})
    again = seconds_to_next_reconcile(observation, status, spec, settings, now)
    return PlanPart(status=change, requeue_after=again, final=True)
