"""Executes a pool's plan, in an order that is safe if the operator crashes between any two calls."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.constants import SERVING_FIELD_MANAGER, Role
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL
from rlrun.kube.objects import Obj
from rlrun.kube.pods import role_of
from rlrun.protocol.shared_pool import ClientActivity, TrainerSessions
from rlrun.service.errors import RequestError

from rlrun_operator.cluster.events import write_events
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.runtime.bounded_gather import bounded_gather
from rlrun_operator.serving.observation import PoolPlan
from rlrun_operator.serving.sidecar_client import PoolSidecarClient

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PoolResponses:
    """Responses of the recipients of a pool's plan."""

    is_complete: bool
    """True if all recipients have responded."""
    sessions: frozenset[str] | None
    """Uids of the runs whose sessions the trainers list, or None if no trainer has responded."""
    clients: Mapping[str, ClientActivity] = field(default_factory=dict)
    """State of the sessions of runs with `driver: Client`, by uid."""


PUSHES = 32
"""Maximum number of pods to which a reconcile sends lists of runs or adapters concurrently. Two concurrent
reconciles use all connections of the client.
"""


async def apply_plan(
    cluster: AsyncKubeClient, sidecars: PoolSidecarClient, key: PoolIdentity, plan: PoolPlan
) -> PoolResponses:
    """Execute the plan. Returns the responses of the recipients. Raises ObjectRefused or ApiError; earlier actions are
    not undone.
    """
    for ref in plan.deletes:
        await cluster.delete(ALL[ref.kind], key.namespace, ref.name, ref.uid)
    for obj in plan.applies:
        await cluster.apply_own(obj, is_new=(obj["kind"], obj["metadata"]["name"]) in plan.new)
    failures: list[RequestError] = []
    trainers: list[TrainerSessions] = []

    async def push(pod: Obj) -> None:
        try:
            if plan.desired is not None:
                await sidecars.push_desired(pod, plan.desired)
            if plan.orders is not None and role_of(pod) != Role.trainer:
                await sidecars.push_order(pod, plan.orders.engines)
            elif plan.orders is not None and plan.orders.trainer is not None:
                trainers.append(await sidecars.push_trainer_order(pod, plan.orders.trainer))
        except RequestError as error:
            log.warning("%s: %s", key, error)
            failures.append(error)

    await bounded_gather(push, plan.recipients, PUSHES)
    await write_statuses(cluster, plan)
    sessions = frozenset(uid for trainer in trainers for uid in trainer.sessions) if trainers else None
    clients = {client.uid: client for trainer in trainers for client in trainer.clients}
    return PoolResponses(not failures, sessions, clients)


async def write_statuses(cluster: AsyncKubeClient, plan: PoolPlan) -> None:
    """Write only the plan's statuses and Events. Raises ApiError."""
    changed = {obj["metadata"]["name"] for obj in plan.statuses if not await _write_status(cluster, obj)}
    for adapter, event in plan.events:
        if adapter["metadata"]["name"] not in changed:
            await write_events(cluster, adapter, [event])


async def _write_status(cluster: AsyncKubeClient, obj: Obj) -> bool:
    """Write the adapter's status. Returns False if the adapter has changed or was deleted; the event of that
    change causes another reconcile.
    """
    metadata = obj["metadata"]
    try:
        await cluster.apply_status(obj, SERVING_FIELD_MANAGER)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
        return False
    log.info("adapter %s/%s: %s", metadata["namespace"], metadata["name"], obj["status"]["deploymentState"])
    return True
