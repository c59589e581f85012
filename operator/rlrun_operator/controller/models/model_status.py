"""Writes the status of RLModels: validity of spec and pods, clear-text credentials, and the number of their runs."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import ValidationError
from rlrun.api.base.phases import Phase
from rlrun.api.model import RLModelSpec, RLModelStatus
from rlrun.constants import API_VERSION, ConditionType, Reason
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLMODEL, RLRUN
from rlrun.kube.objects import Obj, precondition_of
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem

from rlrun_operator.cluster.informers import listed_parts
from rlrun_operator.controller.models.model_pod_check import ModelPodCheck
from rlrun_operator.planning.actions import ConditionChange
from rlrun_operator.planning.status import changed_condition, is_finished, stored_phase, to_clock
from rlrun_operator.resources.models.model_variables import clear_text_credentials
from rlrun_operator.resources.models.model_volumes import cache_claim

log = logging.getLogger(__name__)

CONDITIONS = (
    ConditionType.VALIDATED,
    ConditionType.POD_TEMPLATE_VALID,
    ConditionType.WEIGHTS_CACHED,
    ConditionType.WARNINGS,
)
"""Conditions of an RLModel, in order."""


@dataclass(frozen=True)
class CacheStates:
    """Numbers of namespaces in which the cache of certain weights is filled, downloading or failed."""

    filled: int = 0
    downloading: int = 0
    failed: int = 0


async def write_model_statuses(
    cluster: AsyncKubeClient,
    now: datetime,
    all_runs: Iterable[Obj] | None,
    caches: Mapping[str, CacheStates] | None = None,
    pods: ModelPodCheck | None = None,
    *,
    counts_caches: bool = True,
) -> None:
    """Write the changed statuses of models.

    Models are cluster-scoped, so operators that watch different namespaces must compute the same numbers. A failed
    write is logged and retried at the next resync, and does not affect other models.

    Args:
        cluster: Client of the API server.
        now: Time of the transitions.
        all_runs: Runs of all namespaces. If None, they are listed first.
        caches: States of the weights caches by claim name. If None, models keep their conditions about caches.
        pods: Check of the models' pods. If None, pods are not checked.
        counts_caches: Whether models get a condition with the number of their caches.
    """
    try:
        runs = await cluster.list(RLRUN, keep=listed_parts) if all_runs is None else all_runs
        models = await cluster.list(RLMODEL)
    except ApiError as error:
        log.warning("The RLModels and their runs could not be read; retrying at the next resync: %s", error)
        return
    used = Counter(str((run.get("spec") or {}).get("model", "")) for run in runs if uses_model(run))
    for model in models:
        name = model["metadata"]["name"]
        try:
            checked = None if pods is None else await _check_pods(cluster, pods, model)
            runs_of_model = used[model["spec"]["id"]]
            status = model_status(model, runs_of_model, to_clock(now), caches, checked, counts_caches=counts_caches)
            if status != model.get("status"):
                written = {"apiVersion": API_VERSION, "kind": "RLModel", "metadata": precondition_of(model)}
                await cluster.apply_status({**written, "status": status})
        except ApiError as error:
            log.warning("The status of RLModel %s could not be written; retrying at the next resync: %s", name, error)
        except Exception:
            log.exception("The status of RLModel %s could not be determined", name)


async def _check_pods(cluster: AsyncKubeClient, pods: ModelPodCheck, model: Obj) -> ConditionChange | None:
    """Return the condition that reports the API server's check, or the error if the operator cannot build the pods."""
    try:
        return await pods.check(cluster, model)
    except Exception as error:
        log.exception("The pods of RLModel %s could not be built", model["metadata"]["name"])
        message = (
            f"The operator cannot build the pods of this model: {type(error).__name__}: {error}. Correct "
            f"`podTemplate` and `affinity` of `spec.trainer` and `spec.inference`, and report this error."
        )
        return ConditionChange(ConditionType.POD_TEMPLATE_VALID, False, Reason.INTERNAL_ERROR, message)


def uses_model(run: Obj) -> bool:
    """Return whether the run has or will have pods of its model."""
    ends = bool(run["metadata"].get("deletionTimestamp"))
    return not ends and stored_phase(run) is not Phase.suspended and not is_finished(run)


def model_status(
    model: Obj,
    runs: int,
    now: datetime,
    caches: Mapping[str, CacheStates] | None,
    pods: ConditionChange | None = None,
    *,
    counts_caches: bool = True,
) -> Obj:
    """Return the status of an RLModel.

    Args:
        model: The RLModel.
        runs: Number of runs that use the model.
        now: Time of the transitions.
        caches: States of the weights caches by claim name. None if the caches could not be read.
        pods: Result of the pod check. If None, the previous result is kept.
        counts_caches: If False, the condition about the caches is omitted.
    """
    try:
        old = RLModelStatus.model_validate(model.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        old = RLModelStatus()
    generation = int(model["metadata"].get("generation") or 0)
    resolved = find_model(str(model["spec"]["id"]), (model,))
    conditions = {c.type: c for c in old.conditions if c.type in CONDITIONS}
    if isinstance(resolved, Problem):
        changes = [ConditionChange(ConditionType.VALIDATED, False, resolved.reason, resolved.message)]
        conditions.pop(ConditionType.POD_TEMPLATE_VALID, None)
    else:
        changes = [ConditionChange(ConditionType.VALIDATED, True, Reason.VALID)]
        name = cache_claim(resolved)
        if name is None or not counts_caches:
            conditions.pop(ConditionType.WEIGHTS_CACHED, None)
        elif caches is not None:
            changes.append(_cache_condition(name, caches.get(name, CacheStates())))
        changes += [pods] if pods is not None else []
        changes += _warnings(resolved, was_warned=ConditionType.WARNINGS in conditions)
    for change in changes:
        conditions[change.type] = changed_condition(conditions.get(change.type), change, generation, now)
    return RLModelStatus(
        observed_generation=generation, runs=runs, conditions=[conditions[t] for t in CONDITIONS if t in conditions]
    ).to_json_dict()


def _cache_condition(name: str, states: CacheStates) -> ConditionChange:
    """Return the condition of a model with a cache. The condition names no namespaces, because all users can read
    RLModels.
    """
    kind = ConditionType.WEIGHTS_CACHED
    selector = f"rlrun.dev/weights={name}"
    if states.failed:
        message = (
            f"The download of the weights failed in {_namespaces(states.failed)}: see `kubectl get jobs,pods -A -l "
            f"{selector}`."
        )
        return ConditionChange(kind, False, Reason.WEIGHTS_NOT_CACHED, message)
    if states.downloading:
        message = f"The weights are being downloaded in {_namespaces(states.downloading)}, and are complete in "
        message += f"{_namespaces(states.filled)}."
        return ConditionChange(kind, False, Reason.WEIGHTS_DOWNLOADING, message)
    if states.filled:
        message = f"The weights are complete in {_namespaces(states.filled)}: `kubectl get pvc -A -l {selector}`."
        return ConditionChange(kind, True, Reason.WEIGHTS_CACHED, message)
    return ConditionChange(kind, None, Reason.NOT_STARTED, "No run or serving pool has needed the weights yet.")


def _namespaces(count: int) -> str:
    return "1 namespace" if count == 1 else f"{count} namespaces"


def _warnings(model: RLModelSpec, *, was_warned: bool) -> list[ConditionChange]:
    """Return the condition about credentials in clear text, or an empty list if there has never been such a warning."""
    credentials = clear_text_credentials(model)
    if not credentials:
        return [ConditionChange(ConditionType.WARNINGS, False, Reason.NO_WARNINGS)] if was_warned else []
    names = ", ".join(f"`spec.{name}`" for name in credentials)
    message = (
        f"The values of {names} look like credentials. They are in clear text in the RLModel and in the ConfigMap of "
        "each run, so users may have read them. Replace each credential, store the new one in a Secret in every "
        "namespace that uses the model, and set `valueFrom.secretKeyRef` instead of `value`."
    )
    return [ConditionChange(ConditionType.WARNINGS, True, Reason.CREDENTIAL_IN_CLEAR_TEXT, message)]
