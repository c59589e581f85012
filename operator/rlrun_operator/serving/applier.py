"""Execution of a pool's plan, in an order that is safe if the operator crashes between any two calls."""

import logging
from datetime import UTC, datetime

from rlrun.constants import SERVING_FIELD_MANAGER
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.events import EventRecord, build_event
from rlrun.kube.kinds import ALL
from rlrun.kube.objects import Obj
from rlrun.service.errors import RequestError

from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.serving.observation import PoolPlan
from rlrun_operator.serving.sidecar_client import Sidecars

log = logging.getLogger(__name__)


class PoolApplier:
    """Executes the plans of pools."""

    def __init__(self, cluster: AsyncKubeClient, sidecars: Sidecars) -> None:
        self._cluster = cluster
        self._sidecars = sidecars

    async def apply(self, key: PoolIdentity, plan: PoolPlan) -> None:
        """Execute the plan. Raises ObjectRefused or ApiError; earlier actions are not undone."""
        for ref in plan.deletes:
            await self._cluster.delete(ALL[ref.kind], key.namespace, ref.name, ref.uid)
        for obj in plan.applies:
            await self._cluster.apply_own(obj, is_new=(obj["kind"], obj["metadata"]["name"]) in plan.new)
        if plan.desired is not None:
            for pod in plan.recipients:
                try:
                    await self._sidecars.push_desired(pod, plan.desired)
                except RequestError as error:
                    log.warning("%s: %s", key, error)
        await self.write_statuses(plan)

    async def write_statuses(self, plan: PoolPlan) -> None:
        """Write only the plan's statuses and Events. Raises ApiError."""
        for obj in plan.statuses:
            await self._write_status(obj)
        for adapter, event in plan.events:
            await self._emit(adapter, event)

    async def _write_status(self, obj: Obj) -> None:
        metadata = obj["metadata"]
        try:
            await self._cluster.apply_status(obj, SERVING_FIELD_MANAGER)
        except ApiError as error:
            # The adapter was deleted, or another one has its name; its event triggers the next reconcile.
            if error.status not in (404, 409):
                raise
            return
        log.info("adapter %s/%s: %s", metadata["namespace"], metadata["name"], obj["status"]["deploymentState"])

    async def _emit(self, adapter: Obj, event: EventRecord) -> None:
        try:
            await self._cluster.create(build_event(adapter, event, datetime.now(UTC)))
        except ApiError as error:
            # Events are informational; an adapter must not fail without one.
            log.warning("Could not write event %s of %s: %s", event.reason, adapter["metadata"]["name"], error)
