"""Planner of serving pools. The plan depends only on the observation, the settings and the time."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from rlrun.api.adapter import DeploymentState
from rlrun.api.model import RLModelSpec
from rlrun.constants import API_VERSION, Reason
from rlrun.kube.conditions import shorten
from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef, precondition_of
from rlrun.kube.references import find_model
from rlrun.protocol.engine_proof import pool_server_key
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import MAX_SERVED, DesiredAdapters, ServedAdapter, served_name
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.artifact_catalog import digest_of
from rlrun_operator.planning.beginning import CacheFill, fill_cache
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.models.model_secrets import secrets_problem
from rlrun_operator.resources.models.model_variables import Variables, pool_variables
from rlrun_operator.resources.serving_pool import (
    PoolCredentials,
    PoolIdentity,
    desired_config_map,
    differs,
    pool_children,
)
from rlrun_operator.resources.weights_cache import cache_identity
from rlrun_operator.serving.deployment_state import (
    ACCEPTED,
    DeploymentAssessment,
    artifact_problem,
    assess_problem,
    assess_unwanted,
    assess_wanted,
    deploy_failed,
    is_wanted,
    running_pods,
    state_of,
)
from rlrun_operator.serving.observation import PoolObservation, PoolPlan

BUSY_SECONDS = 1.0
"""Seconds between reconciles of a pool that is changing."""
SETTLED_SECONDS = 15.0
"""Seconds between reconciles of a pool that is not changing."""
DOWNLOAD_SECONDS = 5.0
"""Seconds between reconciles of a pool that waits for its weights, because events of the Job do not queue the pool."""
IN_TRANSITION = frozenset({DeploymentState.deploying, DeploymentState.unloading})
FIELDS = ("deploymentState", "deployedAt", "deploymentMessage", "deploymentModel", "deploymentUrl", "deploymentSecret")
"""Fields of an RLAdapter's status that the serving controller writes; the run reconciler writes the others."""


def plan_pool(pool: PoolObservation, settings: OperatorSettings, now: datetime) -> PoolPlan:
    """Return the plan for a pool."""
    # 1. Select the adapters to serve.
    wanted = [a for a in pool.adapters if is_wanted(a)]
    problems = [(a, artifact_problem(a, settings)) for a in wanted]
    assessments = {_name(a): deploy_failed(problem) for a, problem in problems if problem is not None}
    # Keep the adapters that are deployed.
    usable = sorted(
        (a for a, problem in problems if problem is None),
        key=lambda a: (state_of(a) is not DeploymentState.deployed, _name(a)),
    )
    assessments |= {_name(a): deploy_failed(_too_many(len(usable))) for a in usable[MAX_SERVED:]}
    wanted_adapters = desired_adapters(pool, usable[:MAX_SERVED], settings)

    # 2. Delete a pool without adapters.
    if not wanted_adapters.adapters:
        deletes = tuple(ObjectRef.of(c) for c in pool.children)
        return _finish(pool, PoolPlan(deletes=deletes), assessments, now)

    # 3. Fill the cache of the weights and create missing objects. A new pool waits for its weights, and an existing one
    #    is not changed while its model, a Secret of the model, the credentials or the weights are missing.
    model = usable_model(pool, settings)
    fill = None if isinstance(model, Problem) else missing_weights(pool, model, settings, now)
    children = _desired_children(pool, settings, wanted_adapters, model, fill)
    if isinstance(children, Problem):
        assessments = {_name(a): deploy_failed(children) for a in wanted} | assessments
        return _finish(pool, PoolPlan(), assessments, now)
    waits = fill is not None and not has_deployment(pool)
    if fill is not None and waits:
        assessments = {_name(a): assess_problem(fill.problem) for a in wanted} | assessments
    existing = {(c["kind"], c["metadata"]["name"]): c for c in pool.children}
    applies = tuple(c for c in children if differs(c, existing.get((c["kind"], c["metadata"]["name"]))))
    new = frozenset((c["kind"], c["metadata"]["name"]) for c in applies) - existing.keys()

    # 4. Send changes to the sidecars immediately, before the kubelet updates their ConfigMap.
    recipients = tuple(
        pod.obj
        for pod in running_pods(pool.pods)
        if (report := pool.reports.get(pod.name)) is not None and not _same(report.order, wanted_adapters)
    )
    plan = PoolPlan(
        deletes=() if fill is None else fill.deletes,
        applies=applies,
        new=new,
        desired=wanted_adapters,
        recipients=recipients,
        requeue_after=DOWNLOAD_SECONDS if waits else None,
    )
    return _finish(pool, plan, assessments, now)


def plan_refusal(pool: PoolObservation, problem: Problem, now: datetime) -> PoolPlan:
    """Return a plan that reports `problem` on all adapters that should be deployed but are not deployed yet."""
    waiting = [
        a for a in pool.adapters if is_wanted(a) and assess_wanted(a, pool).state is not DeploymentState.deployed
    ]
    return _finish(pool, PoolPlan(), {_name(a): deploy_failed(problem) for a in waiting}, now)


def desired_adapters(pool: PoolObservation, adapters: list[Obj], settings: OperatorSettings) -> DesiredAdapters:
    """Return the adapters that the pool should serve, sorted by name."""
    served = [
        ServedAdapter(
            name=served_name(pool.key.model, _name(a)),
            uri=str(a["spec"]["uri"]),
            step=int(a["spec"]["step"]),
            digest=digest_of(a) or None,
        )
        for a in sorted(adapters, key=_name)
    ]
    grant = storage_access(pool, settings).grant(StorageRole.serving, [adapter.uri for adapter in served])
    return DesiredAdapters(base=pool.key.model, adapters=served, grant=grant)


def _too_many(count: int) -> Problem:
    message = f"{count} adapters of this model should be served, but a pool serves at most {MAX_SERVED}. Undeploy some."
    return Problem(reason=Reason.POOL_REFUSED, message=message)


def storage_access(pool: PoolObservation, settings: OperatorSettings) -> StorageAccess:
    """Return the S3 access of the pool's pods."""
    return StorageAccess(settings, pool.storage_key, pool.key.namespace, pool.key.name)


def has_deployment(pool: PoolObservation) -> bool:
    """Return whether the pool has a Deployment."""
    return bool(existing_deployments(pool))


def existing_deployments(pool: PoolObservation) -> set[str]:
    """Return the names of the pool's Deployments."""
    return {_name(child) for child in pool.children if child["kind"] == "Deployment"}


def usable_model(pool: PoolObservation, settings: OperatorSettings) -> RLModelSpec | Problem:
    """Return the pool's model, or the reason why pods cannot be created for the model."""
    model = find_model(pool.key.model, pool.models)
    if isinstance(model, Problem):
        return model
    problem = secrets_problem(
        model,
        variables_of(pool.key, model),
        pool.model_secrets,
        settings,
        namespace=pool.key.namespace,
        token_secret=pool.key.token_secret,
    )
    return problem or model


def variables_of(key: PoolIdentity, model: RLModelSpec) -> Variables:
    """Return the variables of the RLModel for the pods of the pool."""
    return pool_variables(model, with_trainer=key.is_shared and model.trainer.is_shareable)


def missing_weights(
    pool: PoolObservation, model: RLModelSpec, settings: OperatorSettings, now: datetime
) -> CacheFill | None:
    """Return the writes that fill the weights cache, or None if the model has no cache or the cache has all files."""
    cache = cache_identity(pool.key.namespace, model)
    if cache is None or pool.weights.is_filled:
        return None
    return fill_cache(cache, model, settings, pool.weights, pool.storage_key, now)


def _desired_children(
    pool: PoolObservation,
    settings: OperatorSettings,
    desired: DesiredAdapters,
    model: RLModelSpec | Problem,
    fill: CacheFill | None,
) -> list[Obj] | Problem:
    identity, exists = pool.key, has_deployment(pool)
    serving = [desired_config_map(identity, desired)] if exists else []
    if isinstance(model, Problem):
        return serving or model
    if pool.s3_problem is not None and not exists:
        return pool.s3_problem
    if fill is not None:
        return [*serving, *fill.applies]
    server_key = pool_server_key(pool.storage_key, identity.namespace, identity.name)
    keys = PoolCredentials(pool.token, pool.api_key, server_key)
    return pool_children(identity, settings, model, desired, storage_access(pool, settings), keys)


def _finish(
    pool: PoolObservation, plan: PoolPlan, assessments: dict[str, DeploymentAssessment], now: datetime
) -> PoolPlan:
    """Return the plan with the statuses of all adapters, their Events, and the time of the next reconcile."""
    statuses: list[Obj] = []
    events: list[tuple[Obj, EventRecord]] = []
    states: set[DeploymentState] = set()
    for adapter in pool.adapters:
        assessment = assessments.get(_name(adapter))
        if assessment is None:
            assessment = (assess_wanted if is_wanted(adapter) else assess_unwanted)(adapter, pool)
        states.add(assessment.state)
        new = _status(adapter, assessment, pool.key, now)
        old = {k: v for k, v in (adapter.get("status") or {}).items() if k in FIELDS}
        never_deployed = not old and new == {"deploymentState": DeploymentState.not_deployed.value}
        if new != old and not never_deployed:
            statuses.append(_object(adapter, new))
            if assessment.state is not state_of(adapter):
                events += [(adapter, event) for event in _events(assessment, new)]
    again = plan.requeue_after or _requeue(plan, states)
    return replace(plan, statuses=tuple(statuses), events=tuple(events), requeue_after=again)


def _requeue(plan: PoolPlan, states: set[DeploymentState]) -> float | None:
    if plan.recipients or states & IN_TRANSITION:
        return BUSY_SECONDS
    return SETTLED_SECONDS if states - {DeploymentState.not_deployed} or plan.desired else None


def _status(adapter: Obj, assessment: DeploymentAssessment, identity: PoolIdentity, now: datetime) -> dict[str, Any]:
    since = (adapter.get("status") or {}).get("deployedAt")
    if assessment.state is DeploymentState.deployed and state_of(adapter) is not DeploymentState.deployed:
        since = now.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    served = assessment.state in ACCEPTED
    status = {
        "deploymentState": assessment.state.value,
        "deployedAt": since,
        "deploymentMessage": shorten(assessment.message) if assessment.message else None,
        "deploymentModel": served_name(identity.model, _name(adapter)) if served else None,
        "deploymentUrl": identity.url if served else None,
        "deploymentSecret": identity.api_key_secret if served else None,
    }
    return {k: v for k, v in status.items() if v is not None}


def _events(assessment: DeploymentAssessment, status: dict[str, Any]) -> list[EventRecord]:
    match assessment.state:
        case DeploymentState.deployed:
            message = f"Model {status['deploymentModel']} is served at {status['deploymentUrl']}. "
            message += f"The API key is in Secret {status['deploymentSecret']}."
            return [EventRecord(Reason.ADAPTER_DEPLOYED, message)]
        case DeploymentState.not_deployed:
            return [EventRecord(Reason.ADAPTER_UNDEPLOYED, "The adapter was undeployed.")]
        case DeploymentState.deploy_failed | DeploymentState.unload_failed:
            return [EventRecord(assessment.state.value, assessment.message or "", warning=True)]
        case _:
            return []


def _object(adapter: Obj, status: dict[str, Any]) -> Obj:
    return {
        "apiVersion": API_VERSION,
        "kind": "RLAdapter",
        "metadata": precondition_of(adapter),
        "status": status,
    }


def _same(one: DesiredAdapters, other: DesiredAdapters) -> bool:
    facts = [{(a.name, a.uri, a.digest) for a in order.adapters} for order in (one, other)]
    return facts[0] == facts[1] and one.grant == other.grant


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])
