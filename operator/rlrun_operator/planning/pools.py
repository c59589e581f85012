"""Use of a shared pool by a run.

An attempt joins a pool when it has its slot, before any of its objects is created. The status names the pool, and the
serving controller reads from the statuses which runs a pool has. The operator never restarts a run because an engine of
its pool restarts: the orchestrator samples from the other engines, and loads its policies again.
"""

from datetime import datetime

from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus, RunPool
from rlrun.constants import Reason, Role
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import PlanPart, StatusChange
from rlrun_operator.planning.observation import ObservedPool, Refused, RunObservation, Waiting
from rlrun_operator.planning.pod_problems import PodProblem, explain_refused_pod, pod_problems
from rlrun_operator.planning.resolution import frozen_config, resolve_run, wanted_pool
from rlrun_operator.planning.running import plan_restart


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
        message=f"The Deployment of the shared pool {status.pool.name} was deleted, and its RLModel or the platform's "
        "settings have changed since it was created. The next attempt gets engines of the current RLModel.",
    )
    return plan_restart(observation, status, settings, now, problem, counts_toward_max=False)


def pool_problems(name: str, pool: ObservedPool, observation: RunObservation) -> list[PodProblem]:
    """Return the problems of a run's pool as problems of its inference, or PoolStarting while no engine is ready."""
    problems = pod_problems(list(pool.pods), observation.pod_events)
    refused = None if pool.deployment is None else explain_refused_pod(pool.deployment)
    blocking = [problem for problem in (pool.problem, refused) if problem is not None]
    if not problems and not blocking and not any(pod.is_ready for pod in pool.pods):
        message = f"No engine of the shared pool {name} is ready yet. No action needed."
        blocking = [Problem(reason=Reason.POOL_STARTING, message=message)]
    return [*(PodProblem(Role.inference, Role.inference, problem) for problem in blocking), *problems]
