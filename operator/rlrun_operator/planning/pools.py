"""Use of a shared pool by a run.

An attempt joins a pool when it has its slot, before any of its objects is created. The status names the pool, and the
serving controller reads from the statuses which runs a pool has. The run's pods are created when a node has a pod of
the pool: otherwise the trainers of several runs could take the GPUs that the engines of their pool need. The operator
never restarts a run because an engine of its pool restarts: the orchestrator samples from the other engines, and loads
its policies again.
"""

from dataclasses import replace
from datetime import datetime

from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus, RunPool
from rlrun.constants import ConditionType, Reason, Role
from rlrun.kube.pods import Pod
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.observation import ObservedPool, Refused, RunObservation, Waiting
from rlrun_operator.planning.pod_problems import PodProblem, explain_refused_pod, pod_problems
from rlrun_operator.planning.resolution import frozen_config, resolve_run, wanted_pool
from rlrun_operator.planning.running import plan_restart, plan_waiting
from rlrun_operator.planning.status import apply_change


def join_pool(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Record the pool of an attempt that has no objects yet, or that it has engines of its own."""
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem) or isinstance(observation.admission, Waiting | Refused):
        return None
    name = resolved.endpoints.pool
    if name == (None if status.pool is None else status.pool.name):
        return None
    pool = None if name is None else RunPool(name=name)
    # Written before the objects, so that the pool accepts the run when its pods start.
    return PlanPart(status=StatusChange(fields={"pool": pool}), status_first=True)


def leave_replaced_pool(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Restart a run whose pool has no Deployment and cannot get one, because RLModel or settings have changed."""
    if status.pool is None or observation.pool is None or observation.pool.deployment is not None:
        return None
    model = find_model(spec.model, observation.models)
    if isinstance(model, Problem) or frozen_config(observation, status.attempt) is None:
        return None
    if wanted_pool(spec, model, observation, settings) == status.pool.name:
        return None
    problem = Problem(
        reason=Reason.POOL_REPLACED,
        message=f"The shared pool {status.pool.name} has no Deployment, and cannot get one because its RLModel or the "
        "platform's settings have changed. The next attempt gets engines of the current RLModel.",
    )
    return plan_restart(observation, status, settings, now, problem, counts_toward_max=False)


def wait_for_pool(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Wait until a node has a pod of the attempt's pool, before the attempt creates anything."""
    if status.pool is None or observation.has_workloads(status.attempt):
        return None
    pool = observed_pool(observation, status.pool.name)
    if any(map(_is_scheduled, pool.pods)):
        return None
    problem = pool_problems(status.pool.name, pool, observation)[0].problem
    shown = StatusChange((ConditionChange(ConditionType.INFERENCE_READY, False, problem.reason, problem.message),))
    status = apply_change(status, shown, now)
    return PlanPart(status=shown).then(plan_waiting(observation, status, spec, settings, now, problem))


def observed_pool(observation: RunObservation, name: str) -> ObservedPool:
    """Return the state of the pool, which is unknown if the attempt has joined it in this reconcile."""
    stored = observation.status.pool
    is_observed = stored is not None and stored.name == name
    return observation.pool if is_observed and observation.pool is not None else ObservedPool()


def _is_scheduled(pod: Pod) -> bool:
    is_bound = pod.condition("PodScheduled").get("status") == "True"
    return pod.is_ready or (is_bound and pod.is_alive and not pod.is_leaving)


def pool_problems(name: str, pool: ObservedPool, observation: RunObservation) -> list[PodProblem]:
    """Return the problems of a run's pool as problems of its inference, or PoolStarting while no engine is ready."""
    problems = pod_problems(list(pool.pods), observation.pod_events)
    refused = None if pool.deployment is None else explain_refused_pod(pool.deployment)
    blocking = [problem for problem in (pool.problem, refused) if problem is not None]
    if not problems and not blocking and not any(pod.is_ready for pod in pool.pods):
        describe = f"`kubectl describe deployment {name} -n {observation.namespace}`"
        message = f"No engine of the shared pool {name} is ready yet. If this takes long, see {describe}."
        blocking = [Problem(reason=Reason.POOL_STARTING, message=message)]
    return [*(PodProblem(Role.inference, Role.inference, problem) for problem in blocking), *problems]


def as_starting(found: PodProblem) -> PodProblem:
    """Return the problem of one engine for a run that trains with the others: not the reason for the run's phase."""
    return replace(found, problem=Problem(reason=Reason.STARTING, message=found.problem.message))
