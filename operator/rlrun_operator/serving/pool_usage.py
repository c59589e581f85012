"""Usage of serving pools and shared pools: one record per Deployment and hour, including the last hour of a deleted
pool.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from rlrun.api.usage import UsageKind, UsageRecord
from rlrun.constants import MODEL_ANNOTATION
from rlrun.kube.conditions import parse_time
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import DEPLOYMENT
from rlrun.kube.objects import Obj, annotation
from rlrun.protocol.problem import Problem
from rlrun.storage.errors import StoreError

from rlrun_operator.resources.base.pod_templates import GPU_RESOURCE
from rlrun_operator.resources.demand import pod_requests
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.serving.observation import PoolObservation, PoolPlan
from rlrun_operator.storage.usage_log import UsageLog

log = logging.getLogger(__name__)

HOUR = timedelta(hours=1)
CAUGHT_UP = 7 * 24
"""Maximum number of past hours for which the operator writes missing records when it starts."""


class PoolUsageRecorder:
    """Writes the usage of pools to the usage log."""

    def __init__(self, usage: UsageLog, variables: Callable[[], Awaitable[Mapping[str, str] | Problem]]) -> None:
        """`variables` returns the AWS_* variables of the platform, or the reason why there are none."""
        self._usage = usage
        self.gpus: dict[PoolIdentity, int] = {}
        """Number of GPUs of each pool."""
        self._variables = variables
        self._recorded: dict[str, datetime] = {}
        """End of the recorded usage by uid of the Deployment, always on the hour."""

    async def record(self, pool: PoolObservation, plan: PoolPlan, now: datetime) -> None:
        """Write the records of completed hours, and the last record of a deleted pool.

        If S3 fails, the records are logged. A later reconcile retries, unless the pool is deleted.
        """
        deleted = {ref.uid for ref in plan.deletes}
        deployments = [child for child in pool.children if child["kind"] == DEPLOYMENT.kind]
        self.gpus[pool.key] = sum(gpus_of(one) for one in deployments if one["metadata"]["uid"] not in deleted)
        if not self.gpus[pool.key]:
            del self.gpus[pool.key]
        for deployment in deployments:
            uid, current = deployment["metadata"]["uid"], begin_of_hour(now)
            is_deleted = uid in deleted
            if self._recorded.get(uid) == current and not is_deleted:
                continue
            records = pool_records(deployment, now, is_deleted=is_deleted)
            problem = await self._write(records)
            if problem is not None:
                log.warning(
                    "Could not write usage to S3; %s: %s: %s",
                    "not retrying, because the pool is deleted" if is_deleted else "retrying",
                    problem,
                    [record.to_json_dict() for record in records],
                )
                continue
            # No other event removes the entries of Deployments that were deleted together with their namespace.
            self._recorded = {uid: end for uid, end in self._recorded.items() if end == current}
            if not is_deleted:
                self._recorded[uid] = current

    async def _write(self, records: list[UsageRecord]) -> str | None:
        """Write the records. Returns the problem, or None if the records were written."""
        if not records:
            return None
        try:
            variables = await self._variables()
            if isinstance(variables, Problem):
                return variables.message
            await self._usage.record(variables, records)
        except (ApiError, StoreError) as error:
            return str(error)
        return None


def pool_records(deployment: Obj, now: datetime, *, is_deleted: bool) -> list[UsageRecord]:
    """Return the records of the last CAUGHT_UP completed hours, and of the current hour if the pool is deleted."""
    created, current = parse_time(deployment["metadata"]["creationTimestamp"]) or now, begin_of_hour(now)
    first = max(begin_of_hour(created), current - CAUGHT_UP * HOUR)
    hours = [first + n * HOUR for n in range((current - first) // HOUR)] + ([current] if is_deleted else [])
    return [
        UsageRecord(
            kind=UsageKind.serving_pool,
            namespace=deployment["metadata"]["namespace"],
            name=deployment["metadata"]["name"],
            uid=deployment["metadata"]["uid"],
            attempt=int(hour.timestamp()) // 3600,
            model=annotation(deployment, MODEL_ANNOTATION)[:256],
            gpus=gpus_of(deployment),
            start_time=max(created, hour),
            end_time=min(now, hour + HOUR),
        )
        for hour in hours
        if max(created, hour) < min(now, hour + HOUR)
    ]


def gpus_of(deployment: Obj) -> int:
    """Return the total number of GPUs of a Deployment's pods."""
    spec = deployment["spec"]
    return int(spec.get("replicas", 1)) * (pod_requests(spec["template"]["spec"]).get(GPU_RESOURCE, 0) // 1000)


def begin_of_hour(time: datetime) -> datetime:
    """Round the time down to the hour in UTC."""
    return time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
