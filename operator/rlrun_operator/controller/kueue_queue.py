"""Admission of runs: by Kueue for those with a LocalQueue, otherwise by the queue of the platform, if it has one."""

from collections.abc import Iterable
from datetime import datetime

from rlrun.kube.objects import Obj

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.reconciler import AdmissionSource
from rlrun_operator.planning.plan.admission import Admission
from rlrun_operator.planning.plan.observation import RunKey, RunObservation
from rlrun_operator.planning.policies.queue.kueue_admission import kueue_answer


class KueueQueue:
    """Queue of Kueue, before the built-in one."""

    def __init__(self, settings: OperatorSettings, other: AdmissionSource | None = None) -> None:
        """`other`: queue of the runs that name no LocalQueue. None starts them at once."""
        self._settings = settings
        self._other = other

    def answer(self, observation: RunObservation, now: datetime) -> Admission | None:
        """Return the answer to the observed run; None: no queue decides about it, or it needs no place."""
        if names_local_queue(observation.run):
            return kueue_answer(observation, self._settings, now)
        return None if self._other is None else self._other.answer(observation, now)

    def on_run_deleted(self, key: RunKey, pods: Iterable[Obj], now: datetime) -> bool:
        """Handle the deletion of a run. Kubernetes deletes its Workload with it."""
        return self._other is not None and self._other.on_run_deleted(key, pods, now)

    def on_reconcile_failed(self, key: RunKey, run: Obj | None, error: Exception, now: datetime) -> None:
        """Handle a failed reconcile. No state about Kueue is kept."""
        if self._other is not None:
            self._other.on_reconcile_failed(key, run, error, now)


def names_local_queue(run: Obj) -> bool:
    """True if Kueue decides about the run."""
    return bool((run.get("spec") or {}).get("queueName"))
