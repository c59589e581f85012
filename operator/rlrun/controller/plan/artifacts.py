"""RLCheckpoints and RLAdapters: the catalogue of what lies in S3.

S3 is the truth. An object appears when a manifest does, and is Ready when every file of the manifest is there with its
size. Retention removes an artifact in two rounds: the object says Deleting first, and only the next look, which would
still find a run that has come to need it, deletes the files and then the object. So whatever is cut off is
remembered by the object, and continued. Objects are owned by their run only with artifactPolicy Delete: with Retain
they outlive it, as the files do.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rlrun.controller.observed import ArtifactObjectKind, Observed, Removal, SeenArtifact
from rlrun.controller.plan.claims import claimed_steps
from rlrun.controller.plan.retention import expired_steps
from rlrun.kube.objects import Obj, artifact_name, phase_of
from rlrun.kube.objects import ObjectRef as Ref
from rlrun.kube.objects import is_artifact_ready as is_ready
from rlrun.schema.adapter import DeploymentState
from rlrun.schema.artifact_status import ArtifactPhase
from rlrun.schema.kube import API_VERSION
from rlrun.schema.labels import RUN_LABEL, RUN_UID_LABEL, STEP_LABEL
from rlrun.schema.retention import ArtifactPolicy
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import MAX_LISTED, ArtifactSummary
from rlrun.schema.wire import Problem

FOLDER_KINDS: dict[str, ArtifactObjectKind] = {"checkpoints": "RLCheckpoint", "adapters": "RLAdapter"}
POOLS_FIELDS = ("deployedAt", "deploymentMessage", "deploymentModel", "deploymentUrl")
"""Fields of an RLAdapter's status that are the serving pools' to write, and so to take away."""
DELETED = "Deleted"
"""Condition of an artifact whose files S3 did not delete."""


@dataclass
class ArtifactPlan:
    """Changes of the catalogue and of S3, and what the run's status lists."""

    removals: list[Removal] = field(default_factory=list)
    deletes: list[Ref] = field(default_factory=list)
    applies: list[Obj] = field(default_factory=list)
    statuses: list[Obj] = field(default_factory=list)
    checkpoints: list[ArtifactSummary] = field(default_factory=list)
    adapters: list[ArtifactSummary] = field(default_factory=list)
    marked: bool = False
    """Whether an object begins to say Deleting: the next look should follow soon."""
    not_deleted: Problem | None = None
    """Why files that retention removes are still there."""


def plan_artifacts(seen: Observed, spec: RLRunSpec) -> ArtifactPlan | None:
    """None when S3 was not looked at: then nothing is known, and nothing may be deleted."""
    if seen.artifacts is None:
        return None
    plan = ArtifactPlan()
    plan.checkpoints = _Catalogue(seen, spec, "RLCheckpoint", spec.checkpoints.keep_cloud).plan(plan)
    plan.adapters = _Catalogue(seen, spec, "RLAdapter", spec.adapters.keep_last).plan(plan)
    return plan


def wants_to_delete(seen: Observed, spec: RLRunSpec) -> bool:
    """Whether retention has something to decide about, for which it has to know who starts from what."""
    return seen.artifacts is not None and any(
        catalogue.surplus or catalogue.going
        for catalogue in (
            _Catalogue(seen, spec, "RLCheckpoint", spec.checkpoints.keep_cloud),
            _Catalogue(seen, spec, "RLAdapter", spec.adapters.keep_last),
        )
    )


class _Catalogue:
    """The objects and the folders of one kind, by step."""

    def __init__(self, seen: Observed, spec: RLRunSpec, kind: ArtifactObjectKind, keep: int) -> None:
        self.seen, self.spec, self.keep = seen, spec, keep
        self.objects = {int(o["spec"]["step"]): o for o in seen.artifact_objects if o["kind"] == kind}
        self.folders = {a.step: a for a in seen.artifacts or () if a.kind == kind}
        self.deployed = {step for step, o in self.objects.items() if o["spec"].get("deployed")}
        self.whole = {
            step
            for step, folder in self.folders.items()
            if folder.problem is None and (folder.manifest is not None or is_ready(self.objects.get(step)))
        }
        self.claimed: set[int] = set()
        if kind == "RLCheckpoint":
            names = {step: artifact_name(seen.name, seen.uid, step) for step in self.folders}
            self.claimed = claimed_steps(seen.namespace, names, self.objects, seen.claims or ())

    @property
    def going(self) -> set[int]:
        """Steps whose objects say Deleting."""
        return {step for step, o in self.objects.items() if phase_of(o) == ArtifactPhase.deleting.value}

    @property
    def surplus(self) -> set[int]:
        """Steps that retention would remove if it were for this run alone: expired ones, and broken older ones."""
        expired = set(expired_steps(self.whole, self.keep, self.deployed, self.claimed))
        kept = self.whole - expired - self.deployed
        broken = {step for step, folder in self.folders.items() if step not in self.whole and folder.problem}
        older = {step for step in broken if 0 < self.keep <= len(kept) and step < min(kept)}
        # What is left of a deletion that was cut off is of no use to anybody.
        remains = {step for step in self.going if step in self.folders and step not in self.whole}
        return expired | (older - self.deployed - self.claimed) | remains

    def plan(self, plan: ArtifactPlan) -> list[ArtifactSummary]:
        """Adds what is to be done, and returns what is whole and stays, newest first."""
        surplus = self.surplus if self.seen.claims is not None else set()
        for step in sorted({*self.objects, *self.folders}):
            obj, folder = self.objects.get(step), self.folders.get(step)
            if folder is None:
                self._without_files(plan, step)
            elif step in self.going and self.seen.claims is None:
                continue  # Whether it is still to go is not known now.
            elif step in surplus:
                self._remove(plan, obj, folder)
            elif step in self.whole or folder.problem:
                self._show(plan, obj, folder)
        stay = sorted(self.whole - surplus, reverse=True)
        return [self._summary(step) for step in stay][:MAX_LISTED]

    def _without_files(self, plan: ArtifactPlan, step: int) -> None:
        obj = self.objects[step]
        if step in self.going:
            plan.deletes.append(Ref.of(obj))
        elif phase_of(obj) != ArtifactPhase.failed.value:
            advice = "undeploy the adapter and delete this object" if step in self.deployed else "delete this object"
            message = f"all files at {obj['spec']['uri']} are gone: {advice}"
            plan.statuses.append(_status(obj, _changed(obj, ArtifactPhase.failed, message)))

    def _remove(self, plan: ArtifactPlan, obj: Obj | None, folder: SeenArtifact) -> None:
        if obj is not None and folder.step in self.going:
            plan.removals.append(Removal(obj, folder.uri))
            plan.not_deleted = plan.not_deleted or not_deleted(obj)
            return
        if obj is None:
            obj = artifact_object(self.seen, self.spec, folder)
            plan.applies.append(obj)
        plan.statuses.append(_status(obj, _changed(obj, ArtifactPhase.deleting, "newer ones have taken its place")))
        plan.marked = True

    def _show(self, plan: ArtifactPlan, obj: Obj | None, folder: SeenArtifact) -> None:
        desired = artifact_object(self.seen, self.spec, folder)
        if folder.step in self.deployed:
            desired = without_owner(desired)
        if obj is None or _owners(obj) != _owners(desired):
            plan.applies.append(desired)
        held = dict((obj or {}).get("status") or {})
        if folder.problem:
            facts = _changed(obj or desired, ArtifactPhase.failed, folder.problem)
        elif folder.manifest is not None:
            facts = {k: v for k, v in held.items() if k not in ("message", "conditions")} | _facts(folder, held)
        else:
            return
        if facts != held:
            plan.statuses.append(_status(obj or desired, facts))

    def _summary(self, step: int) -> ArtifactSummary:
        folder, held = self.folders[step], (self.objects.get(step) or {}).get("status") or {}
        facts = _facts(folder, held) if folder.manifest else held
        created = facts.get("createdAt")
        return ArtifactSummary(
            step=step,
            name=artifact_name(self.seen.name, self.seen.uid, step),
            uri=folder.uri,
            reward=facts.get("reward"),
            created_at=datetime.fromisoformat(created) if isinstance(created, str) else created,
        )


def not_deleted(obj: Obj) -> Problem | None:
    """Why S3 did not delete the artifact's files at the last try, as its object remembers."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    found = next((c for c in conditions if c["type"] == DELETED and c["status"] == "False"), None)
    return Problem(reason=found["reason"], message=found.get("message", "")) if found else None


def failed_removal(removal: Removal, problem: Problem, now: datetime) -> Obj | None:
    """The object's new status after S3 did not delete its files; None where it says so already."""
    known = not_deleted(removal.obj)
    if known is not None and known.reason == problem.reason:
        return None
    condition = {
        "type": DELETED,
        "status": "False",
        "reason": problem.reason,
        "message": problem.message,
        "lastTransitionTime": now.replace(microsecond=0).isoformat().replace("+00:00", "Z"),
        "observedGeneration": 0,
    }
    return _status(removal.obj, {**(removal.obj.get("status") or {}), "conditions": [condition]})


def artifact_object(seen: Observed, spec: RLRunSpec, artifact: SeenArtifact) -> Obj:
    """The RLCheckpoint or RLAdapter, with only the fields that are the operator's: not sharedWith, not deployed."""
    name = artifact_name(seen.name, seen.uid, artifact.step)
    metadata: Obj = {
        "name": name,
        "namespace": seen.namespace,
        "labels": {
            RUN_LABEL: seen.name,
            RUN_UID_LABEL: seen.uid,
            STEP_LABEL: str(artifact.step),
            "app.kubernetes.io/part-of": "rlrun",
        },
    }
    if spec.artifact_policy is ArtifactPolicy.delete:
        metadata["ownerReferences"] = [
            {"apiVersion": API_VERSION, "kind": "RLRun", "name": seen.name, "uid": seen.uid, "controller": True}
        ]
    return {
        "apiVersion": API_VERSION,
        "kind": artifact.kind,
        "metadata": metadata,
        "spec": {
            "runName": seen.name,
            "runUid": seen.uid,
            "model": spec.model,
            "step": artifact.step,
            "uri": artifact.uri,
        },
    }


def without_owner(obj: Obj) -> Obj:
    """The object as the operator writes it, not owned by its run: what is served outlives the run."""
    metadata = {k: obj["metadata"].get(k) for k in ("name", "namespace", "labels")}
    spec = {k: obj["spec"].get(k) for k in ("runName", "runUid", "model", "step", "uri")}
    owned = {k: obj[k] for k in ("apiVersion", "kind")}
    return {**owned, "metadata": {**metadata, "ownerReferences": []}, "spec": spec}


def _facts(artifact: SeenArtifact, held: Obj) -> dict[str, Any]:
    manifest = artifact.manifest
    if manifest is None:
        raise ValueError(f"{artifact.uri} has no manifest")
    reward = manifest.details.get("reward")
    facts: dict[str, Any] = {
        "phase": ArtifactPhase.ready.value,
        "sizeBytes": manifest.size,
        "createdAt": manifest.created_at.replace(microsecond=0).isoformat().replace("+00:00", "Z"),
    }
    if artifact.kind == "RLAdapter":
        facts["deploymentState"] = held.get("deploymentState") or DeploymentState.not_deployed.value
    if manifest.policy_version is not None:
        facts["policyVersion"] = manifest.policy_version
    if isinstance(reward, int | float):
        facts["reward"] = float(reward)
    return facts


def _changed(obj: Obj, phase: ArtifactPhase, message: str) -> dict[str, Any]:
    held = {k: v for k, v in (obj.get("status") or {}).items() if k != "conditions"}
    return {**held, "phase": phase.value, "message": message}


def _status(obj: Obj, facts: dict[str, Any]) -> Obj:
    return {
        "apiVersion": API_VERSION,
        "kind": obj["kind"],
        "metadata": {"name": obj["metadata"]["name"], "namespace": obj["metadata"]["namespace"]},
        "status": {k: v for k, v in facts.items() if k not in POOLS_FIELDS},
    }


def _owners(obj: Obj) -> list[str]:
    return sorted(o["uid"] for o in obj["metadata"].get("ownerReferences") or [])
