"""RLCheckpoints and RLAdapters: the catalogue of what lies in S3.

S3 is the truth. An object appears when a manifest does, and is Ready when every file of the manifest is there with its
size. Retention removes an artifact in two rounds: the object says Deleting first, and only the next look, which would
still find a run that has come to need it, deletes the files and then the object. So whatever is cut off is
remembered by the object, and continued. Objects are owned by their run only with artifactPolicy Delete: with Retain
they outlive it, as the files do.
"""

from datetime import datetime
from typing import Any

from rlrun.api.adapter import DeploymentState
from rlrun.api.artifact import ArtifactPhase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.api.run_status import MAX_LISTED, ArtifactSummary, RLRunStatus
from rlrun.constants import API_VERSION, RUN_LABEL, RUN_UID_LABEL, STEP_LABEL, ConditionType, Reason
from rlrun.kube.conditions import find_condition
from rlrun.kube.objects import Obj, ObjectRef, artifact_name, phase_of
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.plan.actions import (
    ArtifactDeletion,
    ArtifactPlan,
    ConditionChange,
    PlanPart,
    StatusChange,
)
from rlrun_operator.planning.plan.artifact_catalog import ArtifactObjectKind, KindCatalog, ObservedArtifact
from rlrun_operator.planning.plan.observation import RunObservation

FOLDER_KINDS: dict[str, ArtifactObjectKind] = {"checkpoints": "RLCheckpoint", "adapters": "RLAdapter"}
SERVING_STATUS_FIELDS = ("deployedAt", "deploymentMessage", "deploymentModel", "deploymentUrl")
"""Fields of an RLAdapter's status that are the serving pools' to write, and so to take away."""
DELETED = ConditionType.DELETED
"""Condition of an artifact whose files S3 did not delete."""
DELETION_RETRY_SECONDS = 30.0
"""Time between two tries to delete files of a run that is not reconciled for anything else."""


def list_artifacts(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Let the artifacts' objects, and the run's list of them, follow S3; remove what retention does not keep."""
    artifacts, problem = plan_artifacts(observation, spec), observation.artifacts_problem
    if artifacts is None:
        if problem is None:
            return None
        return PlanPart(
            status=StatusChange(
                (ConditionChange(ConditionType.ARTIFACTS_LISTED, False, problem.reason, problem.message),)
            )
        )
    times = [settings.poll_seconds] if artifacts.marked else []
    times += [DELETION_RETRY_SECONDS] if artifacts.removals else []
    return PlanPart(
        status=StatusChange(
            (
                ConditionChange(ConditionType.ARTIFACTS_LISTED, True, Reason.LISTED),
                *_deletion_conditions(status, artifacts.not_deleted),
            ),
            {
                "checkpoints": artifacts.checkpoints,
                "adapters": artifacts.adapters,
                "last_checkpoint": artifacts.checkpoints[0].name if artifacts.checkpoints else None,
            },
        ),
        artifacts=artifacts,
        requeue_after=min(times, default=None),
    )


def _deletion_conditions(status: RLRunStatus, problem: Problem | None) -> tuple[ConditionChange, ...]:
    if problem is not None:
        message = f"retention cannot delete old artifacts, and tries again and again: {problem.message}"
        return (ConditionChange(ConditionType.ARTIFACTS_CLEANED_UP, False, problem.reason, message),)
    if find_condition(status, ConditionType.ARTIFACTS_CLEANED_UP):
        return (ConditionChange(ConditionType.ARTIFACTS_CLEANED_UP, True, Reason.CLEANED_UP),)
    return ()


def plan_artifacts(observation: RunObservation, spec: RLRunSpec) -> ArtifactPlan | None:
    """None when S3 was not listed: then nothing is known, and nothing may be deleted."""
    catalog = observation.catalog
    if not catalog.is_listed:
        return None
    plan = ArtifactPlan()
    plan.checkpoints = _KindPlanner(observation, spec, catalog.checkpoints).plan(plan)
    plan.adapters = _KindPlanner(observation, spec, catalog.adapters).plan(plan)
    return plan


class _KindPlanner:
    """Plans the artifacts of one kind."""

    def __init__(self, observation: RunObservation, spec: RLRunSpec, kind: KindCatalog) -> None:
        self.observation, self.spec, self.kind = observation, spec, kind
        self.references_known = observation.catalog.has_references

    def plan(self, plan: ArtifactPlan) -> list[ArtifactSummary]:
        """Add the actions to `plan` and return the complete artifacts that stay, newest first."""
        surplus = self.kind.surplus_steps if self.references_known else frozenset()
        for step in sorted({*self.kind.objects, *self.kind.folders}):
            obj, folder = self.kind.objects.get(step), self.kind.folders.get(step)
            if folder is None:
                self._without_files(plan, step)
            elif step in self.kind.deleting_steps and not self.references_known:
                continue  # Another run may have come to need it.
            elif step in surplus:
                self._remove(plan, obj, folder)
            elif step in self.kind.complete or folder.problem:
                self._show(plan, obj, folder)
        stay = sorted(self.kind.complete - surplus, reverse=True)
        return [self._summary(step) for step in stay][:MAX_LISTED]

    def _without_files(self, plan: ArtifactPlan, step: int) -> None:
        obj = self.kind.objects[step]
        if step in self.kind.deleting_steps:
            plan.deletes.append(ObjectRef.of(obj))
        elif phase_of(obj) != ArtifactPhase.failed.value:
            deployed = step in self.kind.deployed
            advice = "undeploy the adapter and delete this object" if deployed else "delete this object"
            message = f"all files at {obj['spec']['uri']} are gone: {advice}"
            plan.statuses.append(_status(obj, _changed(obj, ArtifactPhase.failed, message)))

    def _remove(self, plan: ArtifactPlan, obj: Obj | None, folder: ObservedArtifact) -> None:
        if obj is not None and folder.step in self.kind.deleting_steps:
            plan.removals.append(ArtifactDeletion(obj, folder.uri))
            plan.not_deleted = plan.not_deleted or not_deleted(obj)
            return
        if obj is None:
            obj = artifact_object(self.observation, self.spec, folder)
            plan.applies.append(obj)
        plan.statuses.append(_status(obj, _changed(obj, ArtifactPhase.deleting, "newer ones have taken its place")))
        plan.marked = True

    def _show(self, plan: ArtifactPlan, obj: Obj | None, folder: ObservedArtifact) -> None:
        desired = artifact_object(self.observation, self.spec, folder)
        if folder.step in self.kind.deployed:
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
        folder, held = self.kind.folders[step], (self.kind.objects.get(step) or {}).get("status") or {}
        facts = _facts(folder, held) if folder.manifest else held
        created = facts.get("createdAt")
        return ArtifactSummary(
            step=step,
            name=self.kind.names[step],
            uri=folder.uri,
            reward=facts.get("reward"),
            created_at=datetime.fromisoformat(created) if isinstance(created, str) else created,
        )


def not_deleted(obj: Obj) -> Problem | None:
    """Why S3 did not delete the artifact's files at the last try, as its object remembers."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    found = next((c for c in conditions if c["type"] == DELETED and c["status"] == "False"), None)
    return Problem(reason=found["reason"], message=found.get("message", "")) if found else None


def failed_removal(removal: ArtifactDeletion, problem: Problem, now: datetime) -> Obj | None:
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


def artifact_object(seen: RunObservation, spec: RLRunSpec, artifact: ObservedArtifact) -> Obj:
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


def _facts(artifact: ObservedArtifact, held: Obj) -> dict[str, Any]:
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
        "status": {k: v for k, v in facts.items() if k not in SERVING_STATUS_FIELDS},
    }


def _owners(obj: Obj) -> list[str]:
    return sorted(o["uid"] for o in obj["metadata"].get("ownerReferences") or [])
