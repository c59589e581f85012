"""The plan of one look at a pool. Pure: the same look at the same time gives the same plan."""

from datetime import datetime
from typing import Any

from rlrun.api.adapter import DeploymentState
from rlrun.constants import API_VERSION, Reason
from rlrun.kube.conditions import shorten
from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import DesiredAdapters, ServedAdapter, served_name

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.serving_pool import PoolIdentity, differs, order_map, pool_children
from rlrun_operator.serving.deployment_state import (
    ACCEPTED,
    DeploymentAssessment,
    artifact_problem,
    failed,
    is_wanted,
    running,
    state_of,
    unwanted_verdict,
    wanted_verdict,
)
from rlrun_operator.serving.observation import PoolPlan, SeenPool

BUSY_SECONDS = 1.0
"""Between two looks at a pool in which something is under way."""
SETTLED_SECONDS = 15.0
"""Between two looks at a pool in which nothing is."""
ON_THE_WAY = frozenset({DeploymentState.deploying, DeploymentState.unloading})
FIELDS = ("deploymentState", "deployedAt", "deploymentMessage", "deploymentModel", "deploymentUrl")
"""The part of an RLAdapter's status that is written here; the rest is the run reconciler's."""


def plan_pool(seen: SeenPool, settings: OperatorSettings, now: datetime) -> PoolPlan:
    """What to do about a pool, given one look at it."""
    identity = seen.key.identity
    verdicts: dict[str, DeploymentAssessment] = {}

    # 1. Which adapters are to be served, and which of them can be.
    wanted = [a for a in seen.adapters if is_wanted(a)]
    order = order_of(seen, [a for a in wanted if artifact_problem(a) is None])
    for adapter in wanted:
        problem = artifact_problem(adapter)
        if problem is not None:
            verdicts[_name(adapter)] = failed(problem)

    # 2. A pool that nobody needs goes.
    if not order.adapters:
        deletes = tuple(ObjectRef.of(c) for c in seen.children)
        return _finish(seen, PoolPlan(deletes=deletes), verdicts, identity, now)

    # 3. What is missing is made. A pool that serves is left alone while the catalogue or the credentials are away.
    desired = _desired(seen, settings, identity, order)
    if isinstance(desired, Problem):
        verdicts |= {_name(a): failed(desired) for a in wanted if _name(a) not in verdicts}
        return _finish(seen, PoolPlan(), verdicts, identity, now)
    existing = {(c["kind"], c["metadata"]["name"]): c for c in seen.children}
    applies = tuple(c for c in desired if differs(c, existing.get((c["kind"], c["metadata"]["name"]))))

    # 4. Replicas hear of changes at once.
    recipients = tuple(
        pod
        for pod in running(seen.pods)
        if (report := seen.reports.get(_name(pod))) is not None and not _same(report.order, order)
    )
    return _finish(seen, PoolPlan(applies=applies, order=order, recipients=recipients), verdicts, identity, now)


def refuse(seen: SeenPool, problem: Problem, now: datetime) -> PoolPlan:
    """The statuses that say why nothing could be done for the adapters that are wanted and not served yet."""
    waiting = [
        a for a in seen.adapters if is_wanted(a) and wanted_verdict(a, seen).state is not DeploymentState.deployed
    ]
    verdicts = {_name(a): failed(problem) for a in waiting}
    return _finish(seen, PoolPlan(), verdicts, seen.key.identity, now)


def order_of(seen: SeenPool, adapters: list[Obj]) -> DesiredAdapters:
    """What the pool's engines are to serve, always in the same order."""
    served = [
        ServedAdapter(
            name=served_name(seen.key.model, _name(a)), uri=str(a["spec"]["uri"]), step=int(a["spec"]["step"])
        )
        for a in sorted(adapters, key=_name)
    ]
    return DesiredAdapters(base=seen.key.model, adapters=served)


def _desired(
    seen: SeenPool, settings: OperatorSettings, identity: PoolIdentity, order: DesiredAdapters
) -> list[Obj] | Problem:
    exists = any(c["kind"] == "Deployment" for c in seen.children)
    model = find_model(seen.key.model, seen.models)
    if isinstance(model, Problem):
        return [order_map(identity, order)] if exists else model
    if seen.s3_problem is not None and not exists:
        return seen.s3_problem
    children = pool_children(identity, settings, model, order, seen.s3_variables)
    return [c for c in children if c["kind"] != "Secret" or seen.s3_variables]


def _finish(
    seen: SeenPool, plan: PoolPlan, verdicts: dict[str, DeploymentAssessment], identity: PoolIdentity, now: datetime
) -> PoolPlan:
    statuses: list[Obj] = []
    events: list[tuple[Obj, EventRecord]] = []
    states: set[DeploymentState] = set()
    for adapter in seen.adapters:
        verdict = verdicts.get(_name(adapter))
        if verdict is None:
            verdict = (wanted_verdict if is_wanted(adapter) else unwanted_verdict)(adapter, seen)
        states.add(verdict.state)
        new = _status(adapter, verdict, identity, now)
        old = {k: v for k, v in (adapter.get("status") or {}).items() if k in FIELDS}
        if new != old and not _never_deployed(new, old):
            statuses.append(_object(adapter, new))
            if verdict.state is not state_of(adapter):
                events += [(adapter, note) for note in _notes(verdict, new)]
    return PoolPlan(
        deletes=plan.deletes,
        applies=plan.applies,
        order=plan.order,
        recipients=plan.recipients,
        statuses=tuple(statuses),
        events=tuple(events),
        requeue_after=_requeue(plan, states),
    )


def _requeue(plan: PoolPlan, states: set[DeploymentState]) -> float | None:
    if plan.recipients or states & ON_THE_WAY:
        return BUSY_SECONDS
    return SETTLED_SECONDS if states - {DeploymentState.not_deployed} or plan.order else None


def _status(adapter: Obj, verdict: DeploymentAssessment, identity: PoolIdentity, now: datetime) -> dict[str, Any]:
    since = (adapter.get("status") or {}).get("deployedAt")
    if verdict.state is DeploymentState.deployed and state_of(adapter) is not DeploymentState.deployed:
        since = now.replace(microsecond=0).isoformat().replace("+00:00", "Z")
    served = verdict.state in ACCEPTED
    status = {
        "deploymentState": verdict.state.value,
        "deployedAt": since,
        "deploymentMessage": shorten(verdict.message) if verdict.message else None,
        "deploymentModel": served_name(identity.model, _name(adapter)) if served else None,
        "deploymentUrl": identity.url if served else None,
    }
    return {k: v for k, v in status.items() if v is not None}


def _never_deployed(new: dict[str, Any], old: dict[str, Any]) -> bool:
    return not old and new == {"deploymentState": DeploymentState.not_deployed.value}


def _notes(verdict: DeploymentAssessment, status: dict[str, Any]) -> list[EventRecord]:
    match verdict.state:
        case DeploymentState.deployed:
            return [
                EventRecord(Reason.ADAPTER_DEPLOYED, f"Model {status['deploymentModel']} at {status['deploymentUrl']}.")
            ]
        case DeploymentState.not_deployed:
            return [EventRecord(Reason.ADAPTER_UNDEPLOYED, "The adapter is not served any more.")]
        case DeploymentState.deploy_failed | DeploymentState.unload_failed:
            return [EventRecord(verdict.state.value, verdict.message or "", warning=True)]
        case _:
            return []


def _object(adapter: Obj, status: dict[str, Any]) -> Obj:
    metadata = adapter["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": "RLAdapter",
        # The uid makes the API server refuse the status of an adapter that was deleted and made anew.
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "status": status,
    }


def _same(one: DesiredAdapters, other: DesiredAdapters) -> bool:
    return {(a.name, a.uri) for a in one.adapters} == {(a.name, a.uri) for a in other.adapters}


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])
