"""Startup of an attempt: admission, validation, weights, creation of children, readiness.

Admission: no attempt starts and no child is created before the run is admitted. Time in the queue does not count toward
deadlines, because an attempt starts with the admission. If a run loses its slot, its pods write a last checkpoint and
its attempt ends. This does not count toward `maxRestarts`.

Environments: the run's status records the packages of the run's environments. The record becomes part of the
configuration of this and later attempts, so that their orchestrators deliver the same packages.

Weights cache: an attempt's pods are created once the claim in the namespace contains all files. No pod occupies a GPU
while the weights are downloaded, and the run enters its queue afterwards. The claim of an attempt is fixed in its
configuration. Serving pools wait in the same way.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from rlrun.api.base.kubernetes_types import ConditionStatus
from rlrun.api.base.phases import Phase
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus, RunQueue
from rlrun.constants import HASH_ANNOTATION, ConditionType, Reason, Role
from rlrun.kube.conditions import find_condition, seconds
from rlrun.kube.kinds import CLAIM, POD_CONTROLLERS
from rlrun.kube.objects import Obj, ObjectRef, annotation, attempt_of, true_condition
from rlrun.kube.pods import is_leaving
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.kueue.placement import PlacementConflict
from rlrun_operator.planning.actions import ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.children import (
    ChildrenInputs,
    CompleteAttempts,
    active_workloads,
    is_complete,
    missing_children,
    place_children,
    refreshes,
    stale_children,
    workloads_to_delete_after_pause,
)
from rlrun_operator.planning.client_sessions import session_problems
from rlrun_operator.planning.ending import (
    attempt_end,
    clean_up,
    delete_children,
    delete_workloads,
    mark_finished,
    may_write,
    pause_change,
    plan_outcome,
    plan_stopped,
    plan_suspended,
    requeue_after_finish,
)
from rlrun_operator.planning.observation import (
    Admitted,
    Refused,
    RunObservation,
    Waiting,
    newest_event,
)
from rlrun_operator.planning.pod_problems import explain_refused_pod, pod_problems, refused_pods
from rlrun_operator.planning.pools import as_starting, observed_pool, pool_problems
from rlrun_operator.planning.readiness import (
    blamed_role,
    expected_pods,
    is_wait,
    last_reported_wait,
    readiness_conditions,
    unreachable_problem,
)
from rlrun_operator.planning.resolution import (
    changed_package,
    dedication_note,
    frozen_config,
    has_signed_references,
    merged_packages,
    resolve_run,
    resolved_values,
)
from rlrun_operator.planning.running import attempt_start, attempt_withdrawn, plan_waiting, quiet_pause, report_progress
from rlrun_operator.planning.spec import readable_part
from rlrun_operator.planning.status import apply_change, is_true
from rlrun_operator.resources.access.egress import EgressAccess
from rlrun_operator.resources.children import children
from rlrun_operator.resources.weights_cache import (
    CacheIdentity,
    ObservedWeights,
    cache_identity,
    cache_objects,
    is_fetching,
)

EXACT_RUNS_AHEAD = 10
"""Maximum number of runs ahead that the status reports exactly. Larger numbers may be off by 10 %."""


def report_admission(observation: RunObservation, status: RLRunStatus) -> PlanPart:
    """Record the queue's answer in the run's status, in every phase. `status` is the stored status.

    A new admission is written before children are written or deleted.
    """
    admission = observation.admission
    if isinstance(admission, Admitted):
        is_new = status.queue is None or status.queue.admitted_time is None
        change = ConditionChange(ConditionType.ADMITTED, True, Reason.ADMITTED)
        return PlanPart(status=StatusChange((change,), {"queue": admission.queue}), status_first=is_new)
    if admission is not None:
        problem = admission.problem
        change = ConditionChange(ConditionType.ADMITTED, False, problem.reason, problem.message)
    elif find_condition(status, ConditionType.ADMITTED) is not None:
        change = ConditionChange(ConditionType.ADMITTED, False, Reason.NOT_QUEUED)
    else:
        return PlanPart()
    queue = _with_known_number(admission.queue, status.queue) if isinstance(admission, Waiting) else None
    return PlanPart(status=StatusChange((change,), {"queue": queue}))


def may_have_children(observation: RunObservation) -> bool:
    """Return whether the run has a slot or needs none."""
    return observation.admission is None or isinstance(observation.admission, Admitted)


def wait_for_slot(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Keep a run without a slot from starting an attempt, and delete the remains of its previous attempt.

    An attempt that started before the admission and has created nothing starts again, because its start deadline would
    include the time in the queue. This happens to a run that waited for its references.
    """
    admission = observation.admission
    if status.attempt_start_time is not None and observation.has_workloads(status.attempt):
        return None
    began = status.attempt_start_time
    if isinstance(admission, Admitted):
        admitted = admission.queue.admitted_time
        is_early = began is not None and admitted is not None and began < admitted
        return PlanPart(status=attempt_withdrawn(status)) if is_early else None
    if not isinstance(admission, Waiting):
        return None
    problem = admission.problem
    queued = PlanPart(
        status=(StatusChange() if began is None else attempt_withdrawn(status)).then(
            pause_change(status, Phase.queued, problem, Reason.NOT_STARTED, {})
        ),
        requeue_after=requeue_after_finish(observation, now, settings.poll_seconds),
        final=True,
    )
    return delete_children(observation, settings, workloads_to_delete_after_pause(observation)).then(queued)


def end_attempt_without_slot(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """End the attempt of a run that has lost its slot. An outcome of its orchestrator (`plan_outcome`) comes first."""
    admission = observation.admission
    if not isinstance(admission, Waiting | Refused) or not observation.has_workloads(status.attempt):
        return None
    problem = admission.problem
    ended = PlanPart(
        status=pause_change(status, Phase.queued, problem, Reason.NOT_STARTED, attempt_end(status, now)),
        requeue_after=settings.poll_seconds,
        status_first=True,
        discard_writes=True,
        final=True,
    )
    return delete_workloads(observation, settings, active_workloads(observation)).then(ended)


def wait_with_refused_slot(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Keep a refused run waiting until the cause of the refusal is resolved or its start deadline expires."""
    if not isinstance(observation.admission, Refused):
        return None
    return plan_waiting(observation, status, spec, settings, now, observation.admission.problem)


def _with_known_number(queue: RunQueue, stored: RunQueue | None) -> RunQueue:
    """Return `queue`, but with the stored number of runs ahead if it is approximately right, to save a write of the
    status.
    """
    ahead, known = queue.runs_ahead, None if stored is None else stored.runs_ahead
    if ahead is None or known is None or min(ahead, known) <= EXACT_RUNS_AHEAD or 10 * abs(known - ahead) > known:
        return queue
    return queue.model_copy(update={"runs_ahead": known})


def record_environments(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Record the packages that the orchestrator reports. Fails the run if a package differs from its record."""
    report = observation.poll
    if report is None:
        return None
    problem = changed_package(status, spec, report)
    if problem is not None:
        return mark_finished(observation, status, settings, now, Phase.failed, problem)
    return PlanPart(status=StatusChange(fields={"environments": merged_packages(status, spec, report)}))


RETRY_SECONDS = 60
"""Seconds after which a failed Job is recreated."""


@dataclass(frozen=True)
class CacheFill:
    """Writes that fill an incomplete cache, and the problem to report while a run or serving pool waits."""

    problem: Problem
    applies: tuple[Obj, ...] = ()
    deletes: tuple[ObjectRef, ...] = ()


def wait_for_weights(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Create a Job that downloads the weights to the PersistentVolumeClaim in the run's namespace, and wait for the
    Job.
    """
    if frozen_config(observation, status.attempt) is not None:
        # The write of the status may have failed after the ConfigMap was written.
        return _end_wait(status, "")
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem):
        return None
    identity = cache_identity(observation.namespace, resolved.model)
    if identity is None:
        return _end_wait(status, "The RLModel no longer has `cache`.")
    seen = observation.weights
    if seen.is_filled:
        return PlanPart(status=_condition(True, Problem(reason=Reason.WEIGHTS_CACHED, message="")))
    fill = fill_cache(identity, resolved.model, settings, seen, observation.storage_key, now)
    part = PlanPart(
        status=_condition(False, fill.problem),
        applies=fill.applies,
        deletes=fill.deletes,
        writes_children=bool(fill.applies),
    )
    return part.then(plan_waiting(observation, status, spec, settings, now, fill.problem))


def awaits_weights(observation: RunObservation, attempt: int, resolved: ResolvedRun) -> bool:
    """Return whether the attempt waits for its cache, and therefore needs no slot yet."""
    if frozen_config(observation, attempt) is not None or observation.weights.is_filled:
        return False
    return cache_identity(observation.namespace, resolved.model) is not None


def fill_cache(
    identity: CacheIdentity,
    model: RLModelSpec,
    settings: OperatorSettings,
    seen: ObservedWeights,
    storage_key: bytes,
    now: datetime,
) -> CacheFill:
    """Return the writes that fill an incomplete cache, and the problem to report while a run or pool waits."""
    objects = cache_objects(identity, settings, model, storage_key)
    if seen.job is not None:
        outdated = (ObjectRef.of(seen.job),) if _is_outdated(seen, objects[-1], now) else ()
        return CacheFill(waiting_problem(identity, model, seen), deletes=outdated)
    if seen.claim is not None and is_leaving(seen.claim):
        return CacheFill(waiting_problem(identity, model, seen))
    writer = next((pod.name for pod in seen.former_pods if may_write(pod, now)), None)
    if writer is not None:
        message = f"Job {identity.name} is created after pod {writer}, which may still write to the claim, has ended."
        return CacheFill(Problem(reason=Reason.STARTING, message=message))
    # Do not write an existing claim, whose size may have been raised manually.
    applies = tuple(obj for obj in objects if seen.claim is None or obj["kind"] != CLAIM.kind)
    # A refusal of the objects replaces this reason.
    problem = Problem(reason=Reason.STARTING, message=f"Claim and Job {identity.name} are being created.")
    return CacheFill(problem, applies)


def waiting_problem(identity: CacheIdentity, model: RLModelSpec, seen: ObservedWeights) -> Problem:
    """Return the problem to report: the download is running, or something prevents it."""
    where = f"claim {identity.namespace}/{identity.name}"
    if seen.claim is not None and is_leaving(seen.claim):
        message = f"The {where} with the weights is being deleted, and is recreated when no pod uses it."
        return Problem(reason=Reason.WEIGHTS_NOT_CACHED, message=message)
    refused = None if seen.job is None else explain_refused_pod(seen.job, newest_event(seen.events))
    if refused is not None:
        return refused
    told = pod_problems(list(seen.pods))
    if told:
        return told[0].problem
    if true_condition(seen.job, "Suspended") is not None:
        return Problem(
            reason=Reason.WEIGHTS_NOT_CACHED,
            message=(
                f"Job {identity.namespace}/{identity.name} is suspended. Exclude it from the system that queues Jobs, "
                f"for example from Kueue with `manageJobsWithoutQueueName`."
            ),
        )
    if seen.failure is not None:
        cause = str(seen.failure.get("message") or seen.failure.get("reason")).rstrip(".")
        return Problem(
            reason=Reason.WEIGHTS_NOT_CACHED,
            message=f"Job {identity.namespace}/{identity.name} did not download {model.source} to its claim: {cause}. "
            f"The Job is recreated after {RETRY_SECONDS} s.",
        )
    return Problem(
        reason=Reason.WEIGHTS_DOWNLOADING,
        message=(
            f"{model.source} is being downloaded to {where}. To follow it: `kubectl logs -f -n {identity.namespace} "
            f"job/{identity.name}`"
        ),
    )


def _is_outdated(seen: ObservedWeights, wanted: Obj, now: datetime) -> bool:
    """Return whether the Job must be recreated: it failed, its claim is missing, or its pod template is outdated.

    A running download is never restarted for a new template. Jobs without the hash annotation, from older versions of
    the operator, are kept.
    """
    if seen.failed_at is not None:
        return seconds(seen.failed_at, now) >= RETRY_SECONDS
    if seen.claim is None:
        return True
    if true_condition(seen.job, "Complete") is not None or any(map(is_fetching, seen.pods)):
        return False
    made = annotation(seen.job or {}, HASH_ANNOTATION)
    return made not in ("", annotation(wanted, HASH_ANNOTATION))


def _end_wait(status: RLRunStatus, message: str) -> PlanPart | None:
    """Report that the run no longer waits for weights. Returns None if its status does not show such a wait."""
    known = find_condition(status, ConditionType.WEIGHTS_CACHED)
    if known is None or known.status.value == "True":
        return None
    return PlanPart(status=_condition(True, Problem(reason=Reason.WEIGHTS_CACHED, message=message)))


def _condition(value: bool, problem: Problem) -> StatusChange:
    return StatusChange((ConditionChange(ConditionType.WEIGHTS_CACHED, value, problem.reason, problem.message),))


_COMPLETE = CompleteAttempts()


def plan_invalid_spec(
    observation: RunObservation, status: RLRunStatus, problem: Problem, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Wait until the spec is corrected, up to the start deadline.

    The spec of a run that trains or has finished was valid for an earlier version of the operator, so such a run
    continues. While its spec is invalid, a run can still be stopped, be suspended, lose its slot, or end with its
    orchestrator.
    """
    invalid = StatusChange((ConditionChange(ConditionType.VALIDATED, False, problem.reason, problem.message),))
    if status.phase is not None and status.phase.finished:
        return clean_up(observation, settings).then(PlanPart(status=invalid, final=True))
    spec = readable_part(observation.run)
    paused = plan_stopped(observation, status, spec, settings, now) or plan_suspended(
        observation, status, spec, settings, now
    )
    if paused is not None:
        return PlanPart(status=invalid).then(paused)
    change = invalid if status.attempt_start_time is not None else invalid.then(attempt_start(status, now))
    status = apply_change(status, change, now)
    ended = plan_outcome(observation, status, spec, settings, now) or end_attempt_without_slot(
        observation, status, spec, settings, now
    )
    if ended is not None:
        return PlanPart(status=change).then(ended)
    progress = report_progress(observation, status, spec, settings, now)
    status = apply_change(status, progress.status, now)
    waiting = plan_waiting(observation, status, spec, settings, now, problem)
    if is_true(status, "Running") and observation.is_watched:
        waiting = replace(waiting, requeue_after=quiet_pause(observation, status, spec, settings, now))
    return PlanPart(status=change).then(progress).then(waiting)


def wait_for_previous_pods(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Delete the children of earlier attempts, and wait until their pods have terminated."""
    refs, wait = stale_children(observation, status.attempt)
    if not wait:
        return None
    problem = Problem(
        reason=Reason.WAITING_FOR_PREVIOUS_PODS,
        message=_previous_pods_message(observation, status.attempt),
    )
    return PlanPart(deletes=tuple(refs)).then(plan_waiting(observation, status, spec, settings, now, problem))


def validate_references(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Wait until all references of the spec are valid."""
    resolved = resolve_run(observation, status, spec, settings)
    if not isinstance(resolved, Problem):
        note = dedication_note(observation, spec, resolved)
        valid = ConditionChange(ConditionType.VALIDATED, True, Reason.VALID, note)
        return PlanPart(status=StatusChange((valid,), {"resolved": resolved_values(resolved)}))
    invalid = StatusChange((ConditionChange(ConditionType.VALIDATED, False, resolved.reason, resolved.message),))
    return PlanPart(status=invalid).then(plan_waiting(observation, status, spec, settings, now, resolved))


def create_children(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Create the missing children of the attempt. Fails the run if Kueue's placement conflicts with the pods."""
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem) or not may_have_children(observation):
        return None
    identity, key = observation.identity(status.attempt), observation.token_key
    access = egress_access(observation, settings, status.attempt_start_time or now)
    trusts = has_signed_references(observation, status.attempt, resolved)
    inputs = ChildrenInputs(identity, settings, resolved, observation.storage_key, access, key, trusts)
    # Kueue may refuse the placement of pods that exist.
    digest = inputs.digest(observation.owned_children()) if observation.kueue is None else None
    if digest is not None and digest in _COMPLETE:
        return PlanPart(writes_children=True)
    desired = children(
        identity,
        settings,
        resolved,
        observation.storage_key,
        egress=access,
        token_key=key,
        trusts_references=trusts,
    )
    try:
        placed = place_children(observation, desired)
    except PlacementConflict as conflict:
        return mark_finished(observation, status, settings, now, Phase.failed, conflict.problem)
    applies = missing_children(desired if isinstance(placed, Problem) else placed, observation)
    if isinstance(placed, Problem) and any(child["kind"] in POD_CONTROLLERS for child in applies):
        return plan_waiting(observation, status, spec, settings, now, placed)
    if digest is not None and is_complete(desired, observation):
        _COMPLETE.add(digest)
    return PlanPart(applies=tuple(applies), refreshes=tuple(refreshes(applies, observation)), writes_children=True)


def report_readiness(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Report the readiness of every role and what the role waits for."""
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem):
        return None
    pods = observation.pods_of(status.attempt)
    waiting_for = observation.poll.waiting_for if observation.poll else None
    wanted = expected_pods(resolved)
    problems = [*pod_problems(pods, observation.pod_events), *refused_pods(observation, status.attempt)]
    shown = find_condition(status, ConditionType.ORCHESTRATOR_READY)
    # A pod that is not ready does not respond, so the silence is meaningless. An orchestrator that reported a wait has
    # responded before.
    is_ready = shown is not None and (shown.status is ConditionStatus.true or is_wait(shown.reason))
    ready_seconds = seconds(shown.last_transition_time, now) if shown is not None and is_ready else 0.0
    unreachable = unreachable_problem(observation.poll_error, min(observation.silent_seconds, ready_seconds), shown)
    if observation.poll_error is not None and unreachable is None:
        # A single missing response is meaningless: keep showing what the run waits for.
        waiting_for = last_reported_wait(status)
    if resolved.endpoints.pool is not None:
        pool = observed_pool(observation, resolved.endpoints.pool)
        is_running = is_true(status, ConditionType.RUNNING)
        found = pool_problems(resolved, pool, observation, is_running=is_running)
        needs_engine = waiting_for is not None and blamed_role(waiting_for) == Role.inference
        if is_running and not needs_engine and any(p.is_ready and p.role == Role.inference for p in pool.pods):
            found = [as_starting(problem) if problem.role == Role.inference else problem for problem in found]
        found += session_problems(observation, status, spec, found)
        pods, problems = [*pods, *pool.pods], [*problems, *found]
    return PlanPart(status=StatusChange(readiness_conditions(wanted, pods, problems, waiting_for, unreachable)))


def egress_access(
    observation: RunObservation, settings: OperatorSettings, attempt_start: datetime
) -> EgressAccess | None:
    """Return the signer of grants for the egress proxy, or None if the proxy or its key is missing."""
    if settings.egress is None or observation.egress_key is None:
        return None
    return EgressAccess(settings.egress, observation.egress_hosts, observation.egress_key, attempt_start)


def _previous_pods_message(observation: RunObservation, attempt: int) -> str:
    active = {p.attempt for p in observation.own_pods if p.is_alive} | set(
        map(attempt_of, observation.pod_controllers())
    )
    earlier = active - {attempt}
    if not earlier:
        return f"Waiting for pods of an earlier run named {observation.name} to terminate. No action needed."
    numbers = ", ".join(map(str, sorted(earlier)))
    attempts = "attempt" if len(earlier) == 1 else "attempts"
    return f"Waiting for pods of {attempts} {numbers} to terminate. No action needed."
