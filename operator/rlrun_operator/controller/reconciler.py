"""Reconciler of runs: observe, plan, apply."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from rlrun.constants import RUN_UID_LABEL
from rlrun.kube.objects import label

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.planning.plan.status_builder import to_clock
from rlrun_operator.planning.plan_run import plan_run
from rlrun_operator.planning.policies.log_copies import pod_logs
from rlrun_operator.resources.platform import run_layout, s3_variables
from rlrun_operator.runtime.metrics import RunPhaseCollector

log = logging.getLogger(__name__)


class Reconciler:
    """Reconciler of one run per call."""

    def __init__(
        self,
        observer: Observer,
        applier: Applier,
        settings: OperatorSettings,
        phases: RunPhaseCollector,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._observer = observer
        self._applier = applier
        self._settings = settings
        self._phases = phases
        self._clock = clock

    async def reconcile(self, key: RunKey) -> float | None:
        """Reconcile the run. Returns the seconds until the next reconcile, or None to wait for an event."""
        observation = await self._observer.observe(key.namespace, key.name)
        if observation is None:
            self._phases.set_phase(key.namespace, key.name, None)
            await self._collect_remaining_logs(key)
            return None
        now = to_clock(self._clock())
        plan = await self._applier.apply(observation, plan_run(observation, self._settings, now), now)
        if plan.status is not None and plan.status.phase is not None:
            self._phases.set_phase(key.namespace, key.name, plan.status.phase.value)
        return plan.requeue_after

    async def _collect_remaining_logs(self, key: RunKey) -> None:
        """Copy the logs of terminating pods of a deleted run."""
        pods = [p for p in await self._observer.pods(key.namespace, key.name) if label(p, RUN_UID_LABEL)]
        copies = [
            copy
            for uid in sorted({label(p, RUN_UID_LABEL) for p in pods})
            for copy in pod_logs(
                run_layout(self._settings, key.namespace, uid), [p for p in pods if label(p, RUN_UID_LABEL) == uid]
            )
        ]
        if copies:
            source = await self._observer.source_secret()
            variables = s3_variables(self._settings, source) if source else {}
            await self._applier.logs.collect(key.namespace, variables, copies)
