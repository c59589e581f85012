"""Selects the children to write and to delete.

The operator writes a child that is missing or belongs to an older attempt, and a ConfigMap or Secret whose data has
changed. Nothing else is compared, so that a new version of the operator or the RLModel does not restart training pods.
Manual changes persist until the object is deleted and recreated by the operator.

Attempts whose children are complete are cached, so that reconciles do not build the children again. Building all
children takes a third of the CPU time of a reconcile, and almost always shows that none is missing. The cache key is a
digest of all inputs of an attempt's children and of the existing children.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, RUN_UID_LABEL, Reason
from rlrun.kube.kinds import REPLICA_SET
from rlrun.kube.objects import Obj, ObjectRef, attempt_of, label, true_condition
from rlrun.kube.pods import is_leaving, role_of
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import CONFIG_KEY, ResolvedRun

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.kueue.placement import flavor_names, place, placements
from rlrun_operator.kueue.workload_status import is_condition_true
from rlrun_operator.planning.actions import ConfigRefresh
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.resolution import readable_config
from rlrun_operator.resources.access.egress import EgressAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.base.object_digest import digest_of
from rlrun_operator.resources.platform import config_indent

COMPARED_DATA = ("ConfigMap", "Secret")
ENDED_WITH_RUN = (REPLICA_SET.kind, "Secret")
ENDED_WITH_PODS = ("ServiceAccount", "Secret", "ConfigMap", "Service", "NetworkPolicy")
"""Children that only pods need, in the order of their deletion. The ServiceAccount comes first, so that no pod can be
created late; NetworkPolicies, which restrict user code, come last.
"""


def missing_children(desired: Iterable[Obj], observation: RunObservation) -> list[Obj]:
    """Return the children to write, in the order of `desired`."""
    return [
        child
        for child, current in _incomplete(desired, observation)
        if current is not None or not _has_orphaned_pod(child, observation)
    ]


def is_complete(desired: Iterable[Obj], observation: RunObservation) -> bool:
    """Return whether all children are in their desired state."""
    return not _incomplete(desired, observation)


def _incomplete(desired: Iterable[Obj], observation: RunObservation) -> list[tuple[Obj, Obj | None]]:
    """Return the children that differ from their desired state, each with the existing object."""
    existing = {(c["kind"], c["metadata"]["name"]): c for c in observation.owned_children()}
    pairs = [(child, existing.get((child["kind"], child["metadata"]["name"]))) for child in desired]
    fitting = [(_in_the_keys_of(child, current), current) for child, current in pairs]
    return [(child, current) for child, current in fitting if _needs_write(child, current)]


def _has_orphaned_pod(desired: Obj, observation: RunObservation) -> bool:
    """Return whether a pod of the orchestrator's deleted Job is terminating. Two orchestrators must not overlap."""
    if desired["kind"] != "Job" or role_of(desired) != "orchestrator":
        return False
    return any(p.role == "orchestrator" and p.is_alive for p in observation.pods_of(attempt_of(desired)))


def _needs_write(desired: Obj, existing: Obj | None) -> bool:
    if existing is None or attempt_of(existing) != attempt_of(desired):
        return True
    # A server-side apply keeps the keys of other field managers, so additional keys are no reason to write.
    return desired["kind"] in COMPARED_DATA and not desired["data"].items() <= (existing.get("data") or {}).items()


def _in_the_keys_of(desired: Obj, existing: Obj | None) -> Obj:
    """Limit a ConfigMap's configuration to the keys that the attempt started with.

    The images of a running attempt may be older than this operator, and their processes reject unknown keys. If the
    existing configuration cannot be read, the new one is written completely.
    """
    if existing is None or desired["kind"] != "ConfigMap" or attempt_of(existing) != attempt_of(desired):
        return desired
    if readable_config(existing) is None:
        return desired
    old_text = existing["data"][CONFIG_KEY]
    old = json.loads(old_text)
    new = _drop_unknown_fields(json.loads(desired["data"][CONFIG_KEY]), old)
    text = old_text if new == old else json.dumps(new, indent=config_indent(len(old_text)), ensure_ascii=False)
    return {**desired, "data": {**desired["data"], CONFIG_KEY: text}}


def _drop_unknown_fields(new: Any, old: Any) -> Any:
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: _drop_unknown_fields(value, old[key]) for key, value in new.items() if key in old}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [_drop_unknown_fields(*pair) for pair in zip(new, old, strict=True)]
    return new


def refreshes(applies: Iterable[Obj], observation: RunObservation) -> list[ConfigRefresh]:
    """Return a refresh for each orchestrator pod whose mounted ConfigMap is changed by `applies`."""
    existing = {(c["metadata"]["name"], attempt_of(c)) for c in observation.owned_children("ConfigMap")}
    changed = (c for c in applies if c["kind"] == "ConfigMap" and (c["metadata"]["name"], attempt_of(c)) in existing)
    return [
        ConfigRefresh(pod.name, pod.uid, digest_of(config["data"]))
        for config in changed
        for pod in observation.pods_of(attempt_of(config))
        if pod.role == "orchestrator" and pod.is_alive
    ]


def stale_children(observation: RunObservation, attempt: int) -> tuple[list[ObjectRef], bool]:
    """Return the children of earlier attempts or runs of the same name, and whether the attempt must wait for their
    pods.

    Processes of two attempts must not overlap, because both would write to the same S3 folders.
    """
    foreign = [
        c
        for c in observation.children
        if label(c, RUN_UID_LABEL) != observation.uid and label(c, MANAGED_BY_LABEL) == FIELD_MANAGER
    ]
    old = [c for c in observation.pod_controllers() if attempt_of(c) != attempt]
    old_pods = [p for p in observation.pods if p.is_alive and (p.run_uid, p.attempt) != (observation.uid, attempt)]
    return [ObjectRef.of(c) for c in (*foreign, *old)], bool(foreign or old or old_pods)


def active_workloads(observation: RunObservation) -> list[ObjectRef]:
    """Return the ReplicaSets and Jobs that keep pods running."""
    return [ObjectRef.of(c) for c in observation.pod_controllers()]


def workloads_to_delete_after_pause(observation: RunObservation) -> list[ObjectRef]:
    """Return the workloads of a suspended or queued run that are not being deleted yet, the orchestrator's Job first.

    The orchestrator saves the state of the run when it ends. If environments ended first, their groups would fail and
    count as attempted, and the run would continue with other examples.
    """
    return _deletable(sorted(observation.pod_controllers(), key=lambda child: role_of(child) != "orchestrator"))


def workloads_to_delete_after_finish(observation: RunObservation) -> list[ObjectRef]:
    """Return the children to delete as soon as a run has finished: ReplicaSets, Jobs and the Secret with the run's
    tokens.

    The orchestrator's ended Job is kept for the log and the termination message of its pod.
    """
    active_jobs = [j for j in observation.owned_children("Job") if not has_ended(j, observation)]
    return _deletable((*observation.owned_children(*ENDED_WITH_RUN), *active_jobs))


def children_to_delete_after_pods(observation: RunObservation) -> list[ObjectRef]:
    """Return the children that only pods need, or an empty list while a pod of the run may still run."""
    if any(pod.is_alive for pod in observation.own_pods):
        return []
    return _deletable(child for kind in ENDED_WITH_PODS for child in observation.owned_children(kind))


def _deletable(children: Iterable[Obj]) -> list[ObjectRef]:
    return [ObjectRef.of(child) for child in children if not is_leaving(child)]


def has_ended(job: Obj, observation: RunObservation) -> bool:
    """Return whether the Job belongs to an orchestrator that has ended. Such a Job is kept for the log and creates no
    pods.
    """
    if role_of(job) != "orchestrator":
        return False
    if true_condition(job, "Complete", "Failed") is not None:
        return True
    pods = [p for p in observation.pods_of(attempt_of(job)) if p.role == "orchestrator"]
    return bool(pods) and all(p.phase == "Succeeded" for p in pods)


REMEMBERED = 4096
"""Maximum number of remembered attempts, 200 bytes each."""


@dataclass(frozen=True)
class ChildrenInputs:
    """Inputs from which the children of an attempt are built."""

    identity: RunIdentity
    settings: OperatorSettings
    resolved: ResolvedRun
    storage_key: bytes
    egress: EgressAccess | None
    token_key: bytes | None
    trusts_references: bool

    def digest(self, existing: Iterable[Obj]) -> bytes:
        """Return the digest of these inputs and of the existing children."""
        found = sorted([c["kind"], c["metadata"]["name"], attempt_of(c), json.dumps(c.get("data"))] for c in existing)
        return hashlib.sha256(to_json((self, found), bytes_mode="base64")).digest()


class CompleteAttempts:
    """Recent attempts whose children all exist, by the digest of their inputs."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, digest: bytes) -> bool:
        """Return whether an attempt with these inputs had no missing child."""
        if digest not in self._digests:
            return False
        self._digests.move_to_end(digest)
        return True

    def add(self, digest: bytes) -> None:
        """Record that an attempt with these inputs has no missing child."""
        self._digests[digest] = None
        while len(self._digests) > self._size:
            self._digests.popitem(last=False)


def place_children(observation: RunObservation, desired: Sequence[Obj]) -> list[Obj] | Problem:
    """Return the children with their placement, or the reason why it is unknown. Raises PlacementConflict."""
    kueue = observation.kueue
    if kueue is None:
        return list(desired)
    if kueue.problem is not None:
        return kueue.problem
    if isinstance(kueue.flavors, Problem):
        return kueue.flavors
    workload = admitted_workload(observation)
    if workload is None or any(name not in kueue.flavors for name in flavor_names(workload)):
        return Problem(
            reason=Reason.KUEUE_UNAVAILABLE,
            message="The placement of the run's pods is unknown: the operator has not read the admitted Workload or "
            "its ResourceFlavors yet. No action needed.",
        )
    return place(desired, placements(workload, kueue.flavors))


def admitted_workload(observation: RunObservation) -> Obj | None:
    """Return the Workload that admits the run's pods, or None."""
    workloads = observation.kueue.workloads if observation.kueue else ()
    admitted = [
        w
        for w in workloads
        if is_condition_true(w, "Admitted") and not is_condition_true(w, "Finished") and not is_leaving(w)
    ]
    return max(admitted, key=lambda w: str(w["metadata"].get("creationTimestamp") or ""), default=None)
