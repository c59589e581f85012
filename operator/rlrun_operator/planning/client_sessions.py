"""Runs with `driver: Client`: a client's program calls the trainer of the shared pool, which opens the session itself.

Such a run has no pods. The trainer's response to each `TrainerOrder` contains the state of the run's session. The run
is Running once the session is open.

A run whose client makes no calls is suspended, so that its slot is free for another run. If the client has never made a
call, its silence is measured from the first `TrainerOrder` that listed the run. While the trainer does not respond, the
client's state is unknown, and the run keeps its slot.
"""

from collections.abc import Iterable
from datetime import datetime

from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import Progress, RLRunStatus
from rlrun.constants import ConditionType, Driver, Reason, Role
from rlrun.kube.conditions import find_condition, seconds
from rlrun.protocol.client_run import SILENT_SECONDS
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import ClientActivity

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import ConditionChange, PlanPart, StatusChange, StatusFields
from rlrun_operator.planning.ending import mark_finished, silent_client
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.pod_problems import PodProblem
from rlrun_operator.planning.status import is_true


def follow_session(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Fail a run that its pool's trainer has permanently rejected, and suspend a run whose client is silent."""
    session = observation.client
    if spec.driver is not Driver.client or session is None:
        return None
    if session.problem is not None and session.problem.reason == Reason.POOL_EVICTED:
        evicted = PlanPart(status=StatusChange(fields={"pool_evicted": True}), discard_writes=True)
        return evicted.then(mark_finished(observation, status, settings, now, Phase.failed, session.problem))
    # The response may be about the session of an earlier attempt.
    if min(session.silent_seconds, seconds(status.attempt_start_time, now)) < SILENT_SECONDS:
        return None
    # The reconcile that finds `spec.suspend` set ends the attempt, and keeps the reason.
    silent = ConditionChange(ConditionType.RUNNING, False, silent_client().reason)
    return PlanPart(
        status=StatusChange((silent,)),
        status_first=True,
        suspend=True,
        requeue_after=settings.poll_seconds,
        final=True,
    )


def session_change(status: RLRunStatus, session: ClientActivity | None, now: datetime) -> StatusChange:
    """Return the changes of the condition `Running`, the progress and the warnings for this state of the session."""
    if session is None or not session.is_open:
        # After a restart of the trainer, the run continues from its newest saved state.
        starting = ConditionChange(ConditionType.RUNNING, False, Reason.STARTING)
        return StatusChange() if is_true(status, ConditionType.RUNNING) else StatusChange((starting,))
    changes = [ConditionChange(ConditionType.RUNNING, True, Reason.RUNNING)]
    if session.problem is not None:
        changes.append(ConditionChange(ConditionType.WARNINGS, True, session.problem.reason, session.problem.message))
    elif find_condition(status, ConditionType.WARNINGS):
        changes.append(ConditionChange(ConditionType.WARNINGS, False, Reason.NO_WARNINGS))
    return StatusChange(tuple(changes), _progress(status.progress, session.updates, now))


def _progress(old: Progress | None, updates: int, now: datetime) -> StatusFields:
    if old is not None and old.step == updates:
        return {}
    return {"progress": Progress(step=updates, last_step_time=now if updates else None)}


def session_problems(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, found: Iterable[PodProblem]
) -> list[PodProblem]:
    """Return a problem of the trainer if it has not opened the session of a run with `driver: Client`.

    `found` contains the problems of the pool's pods. If one is about the trainer, it is closer to the cause, and the
    result is empty.
    """
    if spec.driver is not Driver.client or any(problem.role == Role.trainer for problem in found):
        return []
    session, is_running = observation.client, is_true(status, ConditionType.RUNNING)
    if session is None and is_running:
        # The trainer, or this operator, has just restarted.
        return []
    if session is not None and session.is_open:
        return []
    problem = session.problem if session is not None else None
    if problem is None and is_running:
        message = "The trainer of the shared pool is reopening the session from the newest saved state."
        problem = Problem(reason=Reason.POOL_RESTARTING, message=message)
    if problem is None:
        message = "The trainer of the shared pool is ready, but has not opened the run's session yet."
        problem = Problem(reason=Reason.WAITING_FOR_TRAINER, message=message)
    return [PodProblem(Role.trainer, Role.trainer, problem)]
