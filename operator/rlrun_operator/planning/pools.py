"""How a run uses a shared pool.

An attempt joins a pool when it has its slot, before any of its objects is created. The status names the pool, and the
serving controller finds the runs of a pool by their statuses. The run's pods are created only after an engine and the
trainer of the pool are scheduled. Otherwise the pods of several runs could occupy the resources that their pool needs.

The operator never restarts a run because a pod of its pool restarts: the orchestrator samples from the other engines,
loads its policies again, and continues with the trainer from the newest saved state.
"""

from dataclasses import replace
from datetime import datetime

from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus, RunPool
from rlrun.constants import Driver, Reason, Role
from rlrun.kube.pods import Pod, role_of
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.shared_pool import pool_trainer_name

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import PlanPart, StatusChange
from rlrun_operator.planning.observation import ObservedPool, Refused, RunObservation, Waiting
from rlrun_operator.planning.pod_problems import PodProblem, explain_refused_pod, pod_problems
from rlrun_operator.planning.readiness import STARTING_REASONS, expected_pods, readiness_conditions
from rlrun_operator.planning.resolution import frozen_config, resolve_run, wanted_pool
from rlrun_operator.planning.running import plan_restart, plan_waiting
from rlrun_operator.planning.status import apply_change
from rlrun_operator.resources.shared_pool import deployment_names, pool_named


def join_pool(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Record which pool an attempt without objects uses, or that the attempt has its own engines."""
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
    """Restart a run whose pool lacks a Deployment that cannot be recreated because RLModel or settings have changed."""
    frozen = frozen_config(observation, status.attempt)
    if status.pool is None or observation.pool is None or frozen is None:
        return None
    pool = pool_named(observation.namespace, frozen.model.id, status.pool.name)
    existing = {deployment["metadata"]["name"] for deployment in observation.pool.deployments}
    missing = [name for name in deployment_names(pool, frozen.model) if name not in existing]
    model = find_model(spec.model, observation.models)
    if not missing or isinstance(model, Problem):
        return None
    if wanted_pool(spec, model, observation, settings) == status.pool.name:
        return None
    problem = Problem(
        reason=Reason.POOL_REPLACED,
        message=f"The shared pool {status.pool.name} has no Deployment {missing[0]}. The operator cannot "
        "recreate it, because the RLModel or the platform's settings have changed. The next attempt gets a new pool.",
    )
    return plan_restart(observation, status, settings, now, problem, counts_toward_max=False)


def wait_for_pool(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Wait until an engine and the trainer of the attempt's pool are scheduled, before the attempt creates anything.

    A run with `driver: Client` does not wait, because it creates no pods that could occupy its pool's resources.
    """
    if spec.driver is Driver.client:
        return None
    resolved = resolve_run(observation, status, spec, settings)
    if status.pool is None or isinstance(resolved, Problem) or observation.has_workloads(status.attempt):
        return None
    pool = observed_pool(observation, status.pool.name)
    scheduled = {pod.role for pod in pool.pods if _is_scheduled(pod)}
    roles = pool_roles(resolved)
    if scheduled >= set(roles):
        return None
    problems = pool_problems(resolved, pool, observation)
    wanted = {role: components for role, components in expected_pods(resolved).items() if role in roles}
    shown = StatusChange(readiness_conditions(wanted, pool.pods, problems, None))
    status = apply_change(status, shown, now)
    waiting = [found.problem for found in problems if found.role not in scheduled]
    # What only needs time is named last.
    problem = min(waiting, key=lambda found: found.reason in STARTING_REASONS)
    return PlanPart(status=shown).then(plan_waiting(observation, status, spec, settings, now, problem))


def pool_roles(resolved: ResolvedRun) -> tuple[Role, ...]:
    """Return the roles whose pods belong to the attempt's shared pool."""
    if resolved.endpoints.pool is None:
        return ()
    return (Role.trainer, Role.inference) if resolved.trains_in_pool else (Role.inference,)


def observed_pool(observation: RunObservation, name: str) -> ObservedPool:
    """Return the observed state of the pool, or an empty state if the attempt joined the pool in this reconcile."""
    stored = observation.status.pool
    is_observed = stored is not None and stored.name == name
    return observation.pool if is_observed and observation.pool is not None else ObservedPool()


def _is_scheduled(pod: Pod) -> bool:
    is_bound = pod.condition("PodScheduled").get("status") == "True"
    return pod.is_ready or (is_bound and pod.is_alive and not pod.is_leaving)


def pool_problems(
    resolved: ResolvedRun, pool: ObservedPool, observation: RunObservation, *, is_running: bool = False
) -> list[PodProblem]:
    """Return the problems of a run's pool as problems of the run's trainer and inference roles.

    A role without a problem and without a ready pod is reported as PoolStarting. If `is_running`, a trainer that is not
    ready is reported as PoolRestarting, with its problem as the cause.
    """
    return [
        found
        for role in pool_roles(resolved)
        for found in _problems_of(role, str(resolved.endpoints.pool), pool, observation, is_running=is_running)
    ]


def _problems_of(
    role: Role, name: str, pool: ObservedPool, observation: RunObservation, *, is_running: bool
) -> list[PodProblem]:
    pods = [pod for pod in pool.pods if pod.role == role]
    found = pod_problems(pods, observation.pod_events)
    refused = [explain_refused_pod(deployment) for deployment in pool.deployments if role_of(deployment) == role]
    blocking = [problem for problem in (pool.problem, *refused) if problem is not None]
    problems = [*(PodProblem(role, role, problem) for problem in blocking), *found]
    is_trainer = role is Role.trainer
    if any(pod.is_ready for pod in pods):
        return [] if is_trainer else problems
    deployment = pool_trainer_name(name) if is_trainer else name
    describe = f"`kubectl describe deployment {deployment} -n {observation.namespace}`"
    if is_trainer and is_running:
        cause = f"{problems[0].problem.reason}: {problems[0].problem.message}" if problems else f"See {describe}."
        message = f"The trainer of the shared pool {name} is not ready. When the trainer is ready, the run continues "
        message += f"from its newest saved state. {cause}"
        return [PodProblem(role, role, Problem(reason=Reason.POOL_RESTARTING, message=message))]
    if not problems:
        what = "The trainer" if is_trainer else "No engine"
        message = f"{what} of the shared pool {name} is {'not ' if is_trainer else ''}ready yet. If this takes long, "
        return [PodProblem(role, role, Problem(reason=Reason.POOL_STARTING, message=f"{message}see {describe}."))]
    return problems


def as_starting(found: PodProblem) -> PodProblem:
    """Return an engine's problem with the reason Starting.

    The run trains with its other engines, so the problem must not become the reason for the run's phase.
    """
    return replace(found, problem=Problem(reason=Reason.STARTING, message=found.problem.message))
