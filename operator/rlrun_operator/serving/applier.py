"""Carrying out a pool's plan, in an order in which a crash between any two calls does no harm."""

import logging
from datetime import UTC, datetime

from rlrun.constants import SERVING_FIELD_MANAGER
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.events import EventRecord, build_event
from rlrun.kube.kinds import ALL
from rlrun.kube.objects import Obj
from rlrun.service.errors import RequestError

from rlrun_operator.serving.observation import PoolKey, PoolPlan
from rlrun_operator.serving.sidecar_client import Sidecars

log = logging.getLogger(__name__)


class PoolApplier:
    """Carries out plans."""

    def __init__(self, cluster: AsyncKubeClient, sidecars: Sidecars) -> None:
        self._cluster = cluster
        self._sidecars = sidecars

    async def apply(self, key: PoolKey, plan: PoolPlan) -> None:
        """Does everything in the plan. Raises ApiError; what was done until then stays done."""
        for ref in plan.deletes:
            await self._cluster.delete(ALL[ref.kind], key.namespace, ref.name, ref.uid)
        for obj in plan.applies:
            await self._cluster.apply(obj)
        if plan.order is not None:
            for pod in plan.recipients:
                try:
                    await self._sidecars.push_desired(pod, plan.order)
                except RequestError as error:
                    log.warning("%s: %s", key, error)
        await self.tell(plan)

    async def tell(self, plan: PoolPlan) -> None:
        """Writes the plan's statuses and events, and does nothing else. Raises ApiError."""
        for obj in plan.statuses:
            await self._write_status(obj)
        for adapter, note in plan.events:
            await self._emit(adapter, note)

    async def _write_status(self, obj: Obj) -> None:
        metadata = obj["metadata"]
        try:
            await self._cluster.apply_status(obj, SERVING_FIELD_MANAGER)
        except ApiError as error:
            # The adapter is gone, or another has its name: its own event brings the next look.
            if error.status not in (404, 409):
                raise
            return
        log.info("adapter %s/%s: %s", metadata["namespace"], metadata["name"], obj["status"]["deploymentState"])

    async def _emit(self, adapter: Obj, note: EventRecord) -> None:
        try:
            await self._cluster.create(build_event(adapter, note, datetime.now(UTC)))
        except ApiError as error:
            # Events are for people; no adapter fails for want of one.
            log.warning("event %s of %s not written: %s", note.reason, adapter["metadata"]["name"], error)
