"""Ends or pauses a run: completed, failed, stopped, suspended.

Terminating pods write a last checkpoint within their grace period, so a finished or suspended run is reconciled until
its pods have ended. The trainer of a shared pool writes the run's last checkpoint after the `TrainerOrder` no
longer lists the run, so the run is also reconciled until that trainer has closed its session. A reconcile lists the
pods before it lists S3. If it finds no active pod, it therefore finds all files that the pods have written.

Container logs are copied to S3, because Kubernetes deletes logs with the pod. The operator copies the logs of
terminating pods while their log-hold sidecar is running (`TerminatingPodLogs`), logs of other pods before it deletes
the pods, and logs of crashed containers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import EndedAttempt, RLRunStatus
from rlrun.constants import ConditionType, Reason, Role
from rlrun.kube.conditions import find_condition, seconds
from rlrun.kube.objects import Obj, ObjectRef
from rlrun.kube.pods import Pod, role_of
from rlrun.protocol.client_run import SILENT_SECONDS
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import RunLayout
from rlrun.storage.stored_logs import MAIN_CONTAINERS

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import ConditionChange, LogCopy, PlanPart, StatusChange, StatusFields
from rlrun_operator.planning.children import (
    children_to_delete_after_pods,
    workloads_to_delete_after_finish,
    workloads_to_delete_after_pause,
)
from rlrun_operator.planning.observation import RunKey, RunObservation, TrainerReport
from rlrun_operator.planning.pod_failures import Crash, RunOutcome, find_outcome
from rlrun_operator.planning.readiness import closed_readiness, progress_change, warning_conditions
from rlrun_operator.planning.resolution import merged_packages
from rlrun_operator.planning.status import apply_change, is_finished, long_ago, reason_fields, stored_phase
from rlrun_operator.resources.platform import run_layout

NODE_LOSS_MARGIN = timedelta(seconds=60)
"""Time that must pass after the end of a pod's grace period before the pod's node counts as lost."""
S3_RETRY_SECONDS = 30.0
"""Seconds between two S3 listings of an inactive run while listings fail."""


def requeue_after_finish(observation: RunObservation, now: datetime, soon: float) -> float | None:
    """Return the seconds until the next reconcile of an inactive run: `soon` while its pods or its pool's trainer may
    write, S3_RETRY_SECONDS while S3 cannot be listed, None once its artifacts are final.
    """
    if observation.is_trainer_writing or any(may_write(pod, now) for pod in observation.own_pods):
        return soon
    return S3_RETRY_SECONDS if observation.artifacts_problem is not None else None


def may_write(pod: Pod, now: datetime) -> bool:
    """Return whether the pod may still run a process. NODE_LOSS_MARGIN after its grace period, a pod no longer counts,
    because its node is lost.
    """
    # Kubernetes sets deletionTimestamp to the time of the request plus the grace period.
    ends = pod.deletion_time
    return pod.is_alive and (ends is None or now < ends + NODE_LOSS_MARGIN)


def trainer_may_write(pods: Iterable[Pod], report: TrainerReport, uid: str, now: datetime) -> bool:
    """Return whether the trainer among a shared pool's pods may write to the folder of the run with this uid.

    A terminating trainer ignores every `TrainerOrder`, and may still save a last checkpoint of any run.
    """
    trainers = [pod for pod in pods if pod.role == Role.trainer and may_write(pod, now)]
    return any(pod.is_leaving for pod in trainers) or (bool(trainers) and report.may_write(uid, now))


def time_to_live(ttl_seconds: int | None, completion_time: datetime | None, now: datetime) -> float | None:
    """Return the seconds until the run is deleted, at most 0 if the deletion is due, or None if the run has no time to
    live.
    """
    if ttl_seconds is None or completion_time is None:
        return None
    return ttl_seconds - seconds(completion_time, now)


def all_logs(layout: RunLayout, pod: Pod) -> list[LogCopy]:
    """Return copies of the logs of all containers of a pod, the most useful logs first.

    Includes containers without a status, because they may have started since the pod was read.
    """
    name = pod.name
    names = sorted(pod.own_containers, key=lambda container: container not in MAIN_CONTAINERS.values())
    return [LogCopy(name, container, str(layout.log(pod.attempt, name, container))) for container in names]


def unheld_logs(layout: RunLayout, pods: Iterable[Pod]) -> list[LogCopy]:
    """Return copies of the logs of pods without a running log hold: pods that have ended or were created by an older
    version.

    The logs of other pods are copied when they terminate.
    """
    return [copy for pod in pods if pod.log_hold_address is None for copy in all_logs(layout, pod)]


def crash_logs(layout: RunLayout, attempt: int, crashes: Sequence[Crash]) -> list[LogCopy]:
    """Return copies of the logs of crashed containers."""
    copies = {
        str(uri): LogCopy(c.pod, c.container, str(uri), c.restarted)
        for c in crashes
        if c.pod and c.container and (uri := layout.log(attempt, c.pod, c.container, previous=c.restarted))
    }
    return list(copies.values())


ACTIVE_PAUSE_SECONDS = 0.01
"""Seconds between the reconciles of two active runs. A thousand reconciles at once would delay events by seconds."""
OLD_PAUSE_SECONDS = 0.1
"""Seconds between the reconciles of two runs that ended more than LATELY ago. Each costs three requests and two S3
listings.
"""


def is_active(run: Obj) -> bool:
    """Return whether the run has been reconciled before, has not ended and is not being deleted."""
    return stored_phase(run) is not None and not is_finished(run) and not run["metadata"].get("deletionTimestamp")


def resync_schedule(runs: Iterable[Obj], now: datetime) -> Iterator[tuple[RunKey, float]]:
    """Yield each run with the seconds until its reconcile.

    Runs that are new, are being deleted or ended less than LATELY ago are reconciled immediately. Active runs are
    spread over time, and so are older runs, the newest first; a run whose time to live ends earlier is reconciled then.
    """
    old: list[tuple[datetime, Obj]] = []
    active = 0
    for run in runs:
        ended = long_ago(run, now)
        if ended is not None:
            old.append((ended, run))
        elif is_active(run):
            yield _key(run), active * ACTIVE_PAUSE_SECONDS
            active += 1
        else:
            yield _key(run), 0.0
    old.sort(key=lambda found: found[0], reverse=True)
    for index, (ended, run) in enumerate(old):
        pause, ttl = index * OLD_PAUSE_SECONDS, (run.get("spec") or {}).get("ttlSecondsAfterFinished")
        left = time_to_live(ttl if isinstance(ttl, int) else None, ended, now)
        yield _key(run), pause if left is None else min(pause, max(0.0, left))


def _key(run: Obj) -> RunKey:
    return RunKey(run["metadata"]["namespace"], run["metadata"]["name"])


FINISH_SECONDS = 120.0
"""Maximum time in seconds for which a run's completion waits until its last artifacts are listed in S3, and its
deletion after its time to live until its processes can no longer write.
"""
NOT_FINISHED = (
    ConditionChange("Completed", False, Reason.NOT_COMPLETED),
    ConditionChange("Failed", False, Reason.NOT_FAILED),
)
"""Conditions Completed and Failed of an unfinished run, set so that `kubectl wait` can be used."""


MAX_ENDED = 32
"""Maximum number of ended attempts that a status keeps while S3 is unavailable. The oldest ones are dropped."""


def plan_finished(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Clean up a finished run: list its last artifacts, delete its children and, after its time to live, the run."""
    if status.phase is None or not status.phase.finished:
        return None
    again = requeue_after_finish(observation, now, settings.poll_seconds)
    left = time_to_live(spec.ttl_seconds_after_finished, status.completion_time, now)
    times = [again, left if left is not None and left > 0 else None]
    # Delete the run only after the last checkpoint has its object, unless pods take too long to end. While S3 cannot be
    # listed, a checkpoint may lack its object, and deleting the run would leave its files unreferenced.
    is_listed = observation.artifacts_problem is None
    rest = PlanPart(
        delete_run=is_listed and left is not None and left <= 0 and (again is None or left <= -FINISH_SECONDS),
        requeue_after=min((t for t in times if t is not None), default=None),
        final=True,
    )
    return clean_up(observation, settings).then(rest)


def plan_stopped(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """End a run whose `spec.stop` is true."""
    if not spec.stop:
        return None
    problem = Problem(reason=Reason.STOPPED, message="The run was stopped; its artifacts are kept.")
    return mark_finished(observation, status, settings, now, Phase.stopped, problem)


def plan_suspended(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Delete the children of a suspended run, and list the artifacts that its pods still write.

    The reason in the run's status is Finishing until the artifacts are final, so that no other run continues from an
    older checkpoint.
    """
    if not spec.suspend:
        return None
    problem = _suspension(status)
    again = requeue_after_finish(observation, now, settings.poll_seconds)
    change = pause_change(status, Phase.suspended, problem, Reason.SUSPENDED, attempt_end(status, now))
    if again is not None:
        message = (
            "The run is being suspended: its pods are terminating or the trainer of its shared pool is saving a last "
            "checkpoint, and the operator is listing its last artifacts in S3. No action needed."
        )
        change = change.then(StatusChange(fields=reason_fields(Problem(reason=Reason.FINISHING, message=message))))
    suspended = PlanPart(status=change, requeue_after=again, final=True)
    workloads = workloads_to_delete_after_pause(observation)
    return delete_children(observation, settings, workloads).then(suspended)


def _suspension(status: RLRunStatus) -> Problem:
    """Return the reason why a run is suspended.

    The operator records a suspension for a silent client in the condition `Running`, which is cleared when the run
    resumes. Any other suspension was requested by a user.
    """
    running = find_condition(status, ConditionType.RUNNING)
    if running is not None and running.reason == Reason.CLIENT_SILENT:
        return silent_client()
    return Problem(
        reason=Reason.SUSPENDED,
        message="`spec.suspend` is true. Set it to false to continue from the newest checkpoint.",
    )


def silent_client() -> Problem:
    """Return the problem that reports why a run with a silent client was suspended."""
    return Problem(
        reason=Reason.CLIENT_SILENT,
        message=f"The client's program made no call for {SILENT_SECONDS:.0f} s, so the operator set `spec.suspend` to "
        "true and freed the run's slot in the shared pool. The program's next call resumes the run; so does setting "
        "`spec.suspend` to false.",
    )


def pause_change(
    status: RLRunStatus, phase: Phase, problem: Problem, readiness: Reason, fields: StatusFields
) -> StatusChange:
    """Return the status change for a suspended or queued run, whose pods are being deleted. `readiness` becomes the
    reason of the readiness conditions that report no problem.
    """
    running = ConditionChange("Running", False, problem.reason)
    conditions = (running, *closed_readiness(status, readiness, None), *NOT_FINISHED)
    fields = {"phase": phase, **fields, **without_estimate(status), **reason_fields(problem)}
    return StatusChange(conditions, fields)


def without_estimate(status: RLRunStatus) -> StatusFields:
    """Return the status fields for a run that is not training: its progress without the estimated time until the last
    step.
    """
    progress = status.progress
    if progress is None or progress.eta_seconds is None:
        return {}
    return {"progress": progress.model_copy(update={"eta_seconds": None})}


def plan_outcome(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """End the run with the outcome that its orchestrator has reported."""
    outcome = find_outcome(orchestrator_job(observation, status.attempt), observation.pods_of(status.attempt))
    if outcome is None:
        return None
    last = _final_change(status, spec, outcome, now)
    status = apply_change(status, last, now)
    if outcome.problem is not None:
        end = mark_finished(observation, status, settings, now, Phase.failed, outcome.problem)
    elif not observation.catalog.is_listed and _finishing_seconds(status, now) < FINISH_SECONDS:
        waiting = Problem(
            reason=Reason.FINISHING,
            message="The operator is listing the run's last artifacts in S3. No action needed.",
        )
        ended = ConditionChange(ConditionType.ORCHESTRATOR_READY, False, waiting.reason, waiting.message)
        change = StatusChange((ended,), reason_fields(waiting))
        end = PlanPart(status=change, requeue_after=settings.poll_seconds, final=True)
    else:
        end = _complete(observation, status, spec, settings, now, outcome)
    return PlanPart(status=last).then(end)


def _finishing_seconds(status: RLRunStatus, now: datetime) -> float:
    """Return the seconds since the operator first saw that the orchestrator has ended."""
    shown = find_condition(status, ConditionType.ORCHESTRATOR_READY)
    is_seen = shown is not None and shown.reason == Reason.FINISHING
    return seconds(shown.last_transition_time, now) if shown is not None and is_seen else 0.0


def mark_finished(
    observation: RunObservation,
    status: RLRunStatus,
    settings: OperatorSettings,
    now: datetime,
    phase: Phase,
    problem: Problem,
) -> PlanPart:
    """End the run in a final phase."""
    failed, completed = phase is Phase.failed, phase is Phase.completed
    finished = PlanPart(
        status=StatusChange(
            (
                ConditionChange("Running", False, phase.value, "" if completed else problem.message),
                *closed_readiness(status, Reason.RUN_FINISHED, problem if failed else None),
                ConditionChange("Completed", completed, problem.reason, problem.message),
                ConditionChange(
                    "Failed", failed, problem.reason if failed else Reason.NOT_FAILED, problem.message if failed else ""
                ),
            ),
            {
                "phase": phase,
                "completion_time": status.completion_time or now,
                **attempt_end(status, now),
                **({} if completed else without_estimate(status)),
                **reason_fields(problem),
            },
        ),
        requeue_after=settings.poll_seconds,
        status_first=failed,
        final=True,
    )
    return delete_workloads(observation, settings, workloads_to_delete_after_finish(observation)).then(finished)


def clean_up(observation: RunObservation, settings: OperatorSettings) -> PlanPart:
    """Delete all children of a finished run except the orchestrator's ended Job."""
    return delete_children(observation, settings, workloads_to_delete_after_finish(observation))


def delete_workloads(observation: RunObservation, settings: OperatorSettings, refs: Iterable[ObjectRef]) -> PlanPart:
    """Delete workloads, after copying the logs of pods without a log hold."""
    deletes = tuple(refs)
    if not deletes:
        return PlanPart()
    layout = run_layout(settings, observation.namespace, observation.uid)
    return PlanPart(deletes=deletes, logs=tuple(unheld_logs(layout, observation.own_pods)))


def orchestrator_job(observation: RunObservation, attempt: int) -> Obj | None:
    """Return the Job of the attempt's orchestrator, or None."""
    jobs = observation.owned_children("Job", attempt=attempt)
    return next((j for j in jobs if role_of(j) == "orchestrator"), None)


def delete_children(
    observation: RunObservation, settings: OperatorSettings, workloads: Iterable[ObjectRef]
) -> PlanPart:
    """Delete the workloads and, in a later reconcile after their pods have ended, the children that only pods need."""
    part = delete_workloads(observation, settings, workloads)
    if part.deletes:
        # Requeue, because the deletion of the Secret alone would not cause a later reconcile.
        return replace(part, requeue_after=settings.poll_seconds)
    return PlanPart(deletes=tuple(children_to_delete_after_pods(observation)))


def _final_change(status: RLRunStatus, spec: RLRunSpec, outcome: RunOutcome, now: datetime) -> StatusChange:
    if outcome.last is None:
        return StatusChange()
    packages: StatusFields = {"environments": merged_packages(status, spec, outcome.last)}
    return StatusChange(
        warning_conditions(status, outcome.last), {**progress_change(status, outcome.last, now), **packages}
    )


def _complete(
    observation: RunObservation,
    status: RLRunStatus,
    spec: RLRunSpec,
    settings: OperatorSettings,
    now: datetime,
    outcome: RunOutcome,
) -> PlanPart:
    progress, steps = status.progress, spec.max_steps
    if progress is not None:
        # Even without a final status all steps are done, because the orchestrator ended with exit code 0.
        steps = progress.step if outcome.last is not None else progress.max_steps or progress.step
        progress = progress.model_copy(update={"step": steps, "eta_seconds": 0.0})
    done = PlanPart(status=StatusChange(fields={"progress": progress}))
    message = "The only step is done." if steps == 1 else f"All {steps} steps are done."
    problem = Problem(reason=Reason.COMPLETED, message=message)
    return done.then(mark_finished(observation, status, settings, now, Phase.completed, problem))


def ended_attempts(status: RLRunStatus, now: datetime) -> list[EndedAttempt]:
    """Return the attempts that are missing from the usage log, assuming that the current attempt ends now."""
    start = status.attempt_start_time
    if start is None:
        return status.ended_attempts
    gpus = (status.resolved.gpus if status.resolved else None) or 0
    ended = EndedAttempt(attempt=status.attempt, gpus=gpus, start_time=start, end_time=max(start, now))
    return [*status.ended_attempts, ended][-MAX_ENDED:]


def attempt_end(status: RLRunStatus, now: datetime) -> StatusFields:
    """Return the fields of the status that end the current attempt."""
    fields: StatusFields = {"next_restart_time": None}
    if status.attempt_start_time is not None:
        fields |= with_active_time(status, now)
        fields["attempt_start_time"] = None
    return fields


def with_active_time(status: RLRunStatus, now: datetime) -> StatusFields:
    """Return the status fields for ended attempts, active time and GPU time, including the current attempt."""
    active = int(seconds(status.attempt_start_time, now))
    gpus = (status.resolved.gpus if status.resolved else None) or 0
    return {
        "ended_attempts": ended_attempts(status, now),
        "past_active_seconds": status.past_active_seconds + active,
        "past_gpu_seconds": status.past_gpu_seconds + active * gpus,
    }
