"""Status of every RLModel: its validity, credentials in clear text, and the number of runs that use it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from pydantic import ValidationError
from rlrun.api.base.phases import Phase
from rlrun.api.model import RLModelSpec, RLModelStatus
from rlrun.constants import API_VERSION, ConditionType, Reason
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLMODEL
from rlrun.kube.objects import Obj
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem

from rlrun_operator.controller.run_list import list_runs
from rlrun_operator.planning.plan.actions import ConditionChange
from rlrun_operator.planning.plan.status_builder import changed_condition, to_clock
from rlrun_operator.planning.plan.stored_status import is_finished, stored_phase
from rlrun_operator.resources.models.model_variables import clear_text_credentials

log = logging.getLogger(__name__)

CONDITIONS = (ConditionType.VALIDATED, ConditionType.WARNINGS)
"""Conditions of an RLModel, in their order."""


class ModelStatusWriter:
    """Writer of the status of RLModels; it writes only changes."""

    def __init__(self, cluster: AsyncKubeClient, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._cluster = cluster
        self._clock = clock

    async def write(self, all_runs: Iterable[Obj] | None) -> None:
        """Write the status of all models from the runs of all namespaces. None lists the runs first.

        Models are cluster-scoped, so operators that watch different namespaces must agree on the numbers. A failed
        write is logged and retried at the next resync.
        """
        try:
            runs = await list_runs(self._cluster, []) if all_runs is None else all_runs
            used = Counter(str((run.get("spec") or {}).get("model", "")) for run in runs if uses_model(run))
            for model in await self._cluster.list(RLMODEL):
                status = model_status(model, used[model["spec"]["id"]], to_clock(self._clock()))
                if status != model.get("status"):
                    await self._cluster.apply_status(_status_object(model, status))
        except ApiError as error:
            log.warning("The API server rejected the status of the RLModels; retrying at the next resync: %s", error)


def uses_model(run: Obj) -> bool:
    """True if the run has pods of its model, or will have them."""
    ends = bool(run["metadata"].get("deletionTimestamp"))
    return not ends and stored_phase(run) is not Phase.suspended and not is_finished(run)


def model_status(model: Obj, runs: int, now: datetime) -> Obj:
    """Return the status of an RLModel; `runs` is the number of runs that use it."""
    try:
        old = RLModelStatus.model_validate(model.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        old = RLModelStatus()
    generation = int(model["metadata"].get("generation") or 0)
    resolved = find_model(str(model["spec"]["id"]), (model,))
    conditions = {c.type: c for c in old.conditions if c.type in CONDITIONS}
    if isinstance(resolved, Problem):
        changes = [ConditionChange(ConditionType.VALIDATED, False, resolved.reason, resolved.message)]
    else:
        changes = [ConditionChange(ConditionType.VALIDATED, True, Reason.VALID)]
        changes += _warnings(resolved, was_warned=ConditionType.WARNINGS in conditions)
    for change in changes:
        conditions[change.type] = changed_condition(conditions.get(change.type), change, generation, now)
    return RLModelStatus(
        observed_generation=generation, runs=runs, conditions=[conditions[t] for t in CONDITIONS if t in conditions]
    ).to_json_dict()


def _warnings(model: RLModelSpec, *, was_warned: bool) -> list[ConditionChange]:
    """Return the change of the condition about credentials in clear text. Never warned of, it stays absent."""
    credentials = clear_text_credentials(model)
    if not credentials:
        return [ConditionChange(ConditionType.WARNINGS, False, Reason.NO_WARNINGS)] if was_warned else []
    names = ", ".join(f"`spec.{name}`" for name in credentials)
    message = (
        f"The values of {names} are in clear text in the RLModel and in the ConfigMap of each run, and the names are "
        "those of credentials. Put each value into a Secret of the namespaces that use the model, name it with "
        "`valueFrom.secretKeyRef` instead of `value`, and replace the credential: users may have read it."
    )
    return [ConditionChange(ConditionType.WARNINGS, True, Reason.CREDENTIAL_IN_CLEAR_TEXT, message)]


def _status_object(model: Obj, status: Obj) -> Obj:
    # The uid makes the API server reject the status if the model was deleted and created again.
    metadata = {"name": model["metadata"]["name"], "uid": model["metadata"]["uid"]}
    return {"apiVersion": API_VERSION, "kind": "RLModel", "metadata": metadata, "status": status}
