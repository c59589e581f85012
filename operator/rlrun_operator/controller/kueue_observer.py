"""Reads the Workloads of a run, and the flavors and priority classes that they name."""

import time
from collections.abc import Sequence
from fnmatch import fnmatchcase

from rlrun.api.run_status import RLRunStatus
from rlrun.constants import RUN_UID_LABEL, ConditionType, Reason
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.conditions import find_condition
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import PRIORITY_CLASS, RESOURCE_FLAVOR, WORKLOAD, WORKLOAD_PRIORITY_CLASS, ResourceKind
from rlrun.kube.objects import Obj, label
from rlrun.protocol.problem import Problem

from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.kueue.placement import flavor_names
from rlrun_operator.kueue.workload import PRIORITY_LABEL, KueueObservation, WorkloadPriority
from rlrun_operator.kueue.workload_status import is_condition_true

CACHE_SECONDS = 30.0
"""Seconds for which a flavor or priority class is reused for other runs. They rarely change."""
FORBIDDEN, NOT_FOUND = 403, 404


class KueueObserver:
    """Reads the Workloads of runs. Sends no requests for runs without a LocalQueue."""

    def __init__(self, cluster: AsyncKubeClient, settings: OperatorSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._known: dict[tuple[str, str], tuple[float, Obj]] = {}

    async def observe(
        self, run: Obj, status: RLRunStatus, objects: RunObjects, *, is_fresh: bool = False
    ) -> KueueObservation | None:
        """Return the state of the run's Workloads, or None if the run has no LocalQueue or has ended and released its
        quota.

        If `is_fresh`, the Workloads are read from the API server. A missing kind or permission is reported as a problem
        of the run, so that the run can still be stopped. Raises ApiError for other errors.
        """
        queue = (run.get("spec") or {}).get("queueName")
        if not queue or _is_over(status):
            return None
        if self._settings.kueue is None:
            return KueueObservation(
                problem=_unavailable(
                    f"spec.queueName names the LocalQueue {queue}, but this platform does not use Kueue (chart "
                    "value `kueue.enabled`). Start a new run without spec.queueName, or ask the platform team."
                )
            )
        metadata = run["metadata"]
        try:
            labels = {RUN_UID_LABEL: metadata["uid"]}
            workloads = await objects.list(WORKLOAD, metadata["namespace"], labels, is_fresh=is_fresh)
        except ApiError as error:
            return KueueObservation(problem=_explain(error, "Kueue's Workloads"))
        priority = await self._priority(run, self._settings.kueue.priority_classes)
        flavors: dict[str, Obj] | Problem = {}
        for workload in workloads:
            if (
                is_condition_true(workload, "Admitted")
                and not is_condition_true(workload, "Finished")
                and not isinstance(flavors, Problem)
            ):
                flavors = await self._flavors(workload)
        return KueueObservation(tuple(workloads), flavors, priority)

    async def _flavors(self, workload: Obj) -> dict[str, Obj] | Problem:
        flavors: dict[str, Obj] = {}
        try:
            for name in flavor_names(workload):
                flavor = await self._read_cached(RESOURCE_FLAVOR, name)
                if flavor is None:
                    return _unavailable(
                        f"Kueue assigned the ResourceFlavor {name} to the run, but it does not exist, so the operator "
                        f"cannot place the pods. Ask the platform team to recreate the ResourceFlavor."
                    )
                flavors[name] = flavor
        except ApiError as error:
            return _explain(error, "Kueue's ResourceFlavors")
        return flavors

    async def _priority(self, run: Obj, allowed: Sequence[str]) -> WorkloadPriority | Problem | None:
        name = label(run, PRIORITY_LABEL)
        kind = WORKLOAD_PRIORITY_CLASS
        if name and not is_listed(name, allowed):
            return Problem(
                reason=Reason.PRIORITY_CLASS_NOT_ALLOWED,
                message=f"The run's label {PRIORITY_LABEL} names the WorkloadPriorityClass {name!r}, which this "
                f"platform does not allow for runs (allowed: {', '.join(allowed) or 'none'}). Change or "
                "remove the label.",
            )
        if not name:
            name, kind = str((run.get("spec") or {}).get("priorityClassName") or ""), PRIORITY_CLASS
        if not name or (kind is PRIORITY_CLASS and not is_listed(name, self._settings.priority_classes)):
            # A forbidden PriorityClass is reported by the validation of the spec's references.
            return None
        try:
            obj = await self._read_cached(kind, name)
        except ApiError as error:
            return _explain(error, f"{kind.kind}es")
        if obj is None:
            return Problem(
                reason=Reason.QUEUE_MISCONFIGURED,
                message=(
                    f"The {kind.kind} {name} does not exist, so the run's priority in the queue is unknown. Choose "
                    f"another class, or ask the platform team to create it."
                ),
            )
        return WorkloadPriority(kind.kind, name, int(obj.get("value") or 0))

    async def _read_cached(self, kind: ResourceKind, name: str) -> Obj | None:
        known = self._known.get((kind.kind, name))
        if known is not None and time.monotonic() - known[0] < CACHE_SECONDS:
            return known[1]
        obj = await self._cluster.get(kind, None, name)
        if obj is not None:
            self._known[kind.kind, name] = (time.monotonic(), obj)
        return obj


def is_listed(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the name matches one of the patterns, in which * matches any characters."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_over(status: RLRunStatus) -> bool:
    """Return whether the run is finished and has no Workload left to finish."""
    if status.phase is None or not status.phase.finished:
        return False
    known = find_condition(status, ConditionType.ADMITTED)
    return known is None or known.reason == Reason.NOT_QUEUED


def _explain(error: ApiError, what: str) -> Problem:
    """Return the problem for an error caused by a missing kind or permission. Raises any other error."""
    if error.status == FORBIDDEN:
        return _unavailable(
            f"The operator is not allowed to read {what} ({error}). The platform team must extend the operator's role."
        )
    if error.status == NOT_FOUND:
        return _unavailable(
            f"The API server does not serve {what} in version v1beta2 ({error}). The platform team must "
            "install Kueue 0.15 or later."
        )
    raise error


def _unavailable(message: str) -> Problem:
    return Problem(reason=Reason.KUEUE_UNAVAILABLE, message=message)
