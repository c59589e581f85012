"""RLCheckpoints and RLAdapters: objects that describe the artifacts in S3.

S3 is the source of truth for which artifacts exist. The operator creates an object when a manifest appears, and marks
it Ready when every file in S3 has the size given in the manifest. The manifest's digest is then written to the status
once. From then on the object defines the artifact: if the files are replaced, the object becomes Failed
(`ArtifactChanged`).

Retention deletes an artifact in two reconciles: the first sets phase Deleting; the next one checks again that no run
references it, and deletes the files, then the object. An interrupted deletion is therefore recorded in the object and
continued. A user deletes an artifact by setting `spec.expiresAt`. If the user only deleted the object, the operator
would create it again. Objects have their run as owner only if artifactPolicy is Delete. Otherwise they outlive the
run, like the files.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rlrun.api.adapter import DeploymentState
from rlrun.api.artifact import expiry_text
from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.api.run_status import ArtifactEntry, RLRunStatus
from rlrun.constants import API_VERSION, ConditionType, Driver, Reason
from rlrun.kube import objects
from rlrun.kube.conditions import find_condition
from rlrun.kube.objects import Obj, ObjectRef, ordered_expiry, phase_of, precondition_of
from rlrun.kube.references import checkpoint_id
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.session_specs import CLIENT_MAX_STEPS
from rlrun.storage.manifest import ready_facts

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import ArtifactDeletion, ArtifactPlan, ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog, ArtifactObjectKind, KindCatalog, ObservedArtifact
from rlrun_operator.planning.observation import RunObservation


@dataclass(frozen=True)
class UploadSchedule:
    """Upload intervals in steps; 0 disables uploads at an interval. A checkpoint and an adapter are always uploaded
    after the last step.
    """

    checkpoint_interval: int
    adapter_interval: int
    max_steps: int

    @classmethod
    def of(cls, spec: RLRunSpec, config: ResolvedRun | None, settings: OperatorSettings) -> "UploadSchedule":
        """Return the upload schedule of an attempt. `config` contains the default interval that applied when the
        attempt started.

        For a run with `driver: Client` no upload is due on a schedule, because the client's program decides when to
        save.
        """
        if spec.driver is Driver.client:
            return cls(0, 0, CLIENT_MAX_STEPS)
        frozen = None if config is None else config.spec.checkpoints.interval
        interval = spec.checkpoints.interval or frozen or settings.defaults.checkpoint_interval
        return cls(interval, spec.adapters.interval, spec.max_steps)

    def is_upload_due(self, catalog: ArtifactCatalog, step: int) -> bool:
        """Return whether the newest checkpoint or adapter due by `step` is missing or incomplete in S3."""
        kinds = ((catalog.checkpoints, self.checkpoint_interval), (catalog.adapters, self.adapter_interval))
        return any(max(kind.complete, default=0) < self._newest_due(step, interval) for kind, interval in kinds)

    def is_passed(self, before: int, after: int) -> bool:
        """Return whether a checkpoint or an adapter becomes due after step `before`, up to step `after`."""
        intervals = (self.checkpoint_interval, self.adapter_interval)
        return any(self._newest_due(before, i) != self._newest_due(after, i) for i in intervals)

    def _newest_due(self, step: int, interval: int) -> int:
        if step >= self.max_steps:
            return step
        return step - step % interval if interval else 0


FOLDER_KINDS: dict[str, ArtifactObjectKind] = {"checkpoints": "RLCheckpoint", "adapters": "RLAdapter"}
SERVING_STATUS_FIELDS = ("deployedAt", "deploymentMessage", "deploymentModel", "deploymentUrl", "deploymentSecret")
"""Fields of an RLAdapter's status that belong to the serving controller."""
DELETED = ConditionType.DELETED
"""Condition that records a failed deletion of an artifact's files."""
DELETING_MESSAGE = (
    "Retention is deleting this artifact, because newer ones exist or its expiry time has passed. No action needed."
)
DELETION_RETRY_SECONDS = 30.0
"""Seconds until a failed deletion of files is retried."""


def list_artifacts(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Update the artifacts' objects and the run's status to match S3, and apply retention."""
    artifacts, problem = plan_artifacts(observation, spec, now), observation.artifacts_problem
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
    # Nothing else causes a reconcile of a run that has ended or is suspended.
    expiry = observation.catalog.next_expiry
    times += [max(settings.poll_seconds, expiry)] if expiry is not None else []
    return PlanPart(
        status=StatusChange(
            (
                ConditionChange(ConditionType.ARTIFACTS_LISTED, True, Reason.LISTED),
                *_deletion_conditions(status, artifacts.deletion_problem),
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
        message = f"Old artifacts could not be deleted; the operator retries. Cause: {problem.message}"
        return (ConditionChange(ConditionType.ARTIFACTS_CLEANED_UP, False, problem.reason, message),)
    if find_condition(status, ConditionType.ARTIFACTS_CLEANED_UP):
        return (ConditionChange(ConditionType.ARTIFACTS_CLEANED_UP, True, Reason.CLEANED_UP),)
    return ()


def plan_artifacts(observation: RunObservation, spec: RLRunSpec, now: datetime) -> ArtifactPlan | None:
    """Return the changes to the artifacts, or None if S3 was not listed."""
    catalog = observation.catalog
    if not catalog.is_listed:
        return None
    plan = ArtifactPlan()
    plan.checkpoints = _KindPlanner(observation, spec, catalog.checkpoints, now).plan(plan)
    plan.adapters = _KindPlanner(observation, spec, catalog.adapters, now).plan(plan)
    return plan


class _KindPlanner:
    """Planner of the artifacts of one kind."""

    def __init__(self, observation: RunObservation, spec: RLRunSpec, kind: KindCatalog, now: datetime) -> None:
        self.observation, self.spec, self.kind, self.now = observation, spec, kind, now
        self.references_known = observation.catalog.has_references

    def plan(self, plan: ArtifactPlan) -> list[ArtifactEntry]:
        """Add the actions to `plan`. Returns the complete artifacts that are kept, the newest first."""
        surplus = self.kind.surplus_steps if self.references_known else frozenset()
        for step in sorted({*self.kind.objects, *self.kind.folders}):
            obj, folder = self.kind.objects.get(step), self.kind.folders.get(step)
            if folder is None:
                self._mark_missing(plan, step)
            elif step in self.kind.deleting_steps and not self.references_known:
                continue  # Another run may reference the artifact by now.
            elif step in surplus:
                self._remove(plan, obj, folder)
            elif step in self.kind.complete or folder.problem:
                self._update(plan, obj, folder)
        kept = sorted(filter(self._has_no_other_uri, self.kind.complete - surplus), reverse=True)
        return [self._summary(step) for step in kept]

    def _has_no_other_uri(self, step: int) -> bool:
        obj = self.kind.objects.get(step)
        return obj is None or _has_uri_of(obj, self.kind.folders[step])

    def _mark_missing(self, plan: ArtifactPlan, step: int) -> None:
        obj = self.kind.objects[step]
        if step in self.kind.deleting_steps | (self.kind.ordered - self.kind.deployed):
            plan.deletes.append(ObjectRef.of(obj))
        elif phase_of(obj) != ArtifactPhase.failed.value:
            deployed = step in self.kind.deployed
            advice = "Undeploy the adapter, then delete this object" if deployed else "Delete this object"
            message = f"All files at {obj['spec']['uri']} were deleted from S3. {advice}."
            plan.statuses.append(_status(obj, _change_phase(obj, ArtifactPhase.failed, message)))

    def _remove(self, plan: ArtifactPlan, obj: Obj | None, folder: ObservedArtifact) -> None:
        if obj is not None and folder.step in self.kind.deleting_steps:
            plan.removals.append(ArtifactDeletion(obj, folder.uri))
            plan.deletion_problem = plan.deletion_problem or deletion_problem(obj)
            return
        if obj is None:
            obj = artifact_object(self.observation, self.spec, folder)
            plan.applies.append(obj)
        plan.statuses.append(_status(obj, _change_phase(obj, ArtifactPhase.deleting, DELETING_MESSAGE)))
        plan.marked = True

    def _update(self, plan: ArtifactPlan, obj: Obj | None, folder: ObservedArtifact) -> None:
        if obj is not None and not _has_uri_of(obj, folder):
            message = f"`spec.uri` is {obj['spec'].get('uri')}, but the files of this step are at {folder.uri}."
            facts = _change_phase(
                obj, ArtifactPhase.failed, f"{message} Delete this object; the operator recreates it."
            )
            if facts != (obj.get("status") or {}):
                plan.statuses.append(_status(obj, facts))
            return
        desired = artifact_object(self.observation, self.spec, folder)
        if folder.step in self.kind.deployed:
            desired = without_owner(desired)
        if obj is None or _owners(obj) != _owners(desired):
            plan.applies.append(desired)
        held = dict((obj or {}).get("status") or {})
        if folder.problem:
            facts = _change_phase(obj or desired, ArtifactPhase.failed, folder.problem)
            if folder.is_changed:
                facts["conditions"] = [_changed_condition(held, folder.problem, self.now)]
        elif folder.manifest is not None:
            facts = {k: v for k, v in held.items() if k not in ("message", "conditions")} | _facts(folder, held)
        elif obj is not None:
            facts = dict(held)
        else:
            return
        if (expires_at := ordered_expiry(obj)) is not None:
            facts["expiresAt"] = expiry_text(expires_at)
        if facts != held:
            plan.statuses.append(_status(obj or desired, facts))

    def _summary(self, step: int) -> ArtifactEntry:
        folder, held = self.kind.folders[step], (self.kind.objects.get(step) or {}).get("status") or {}
        facts = _facts(folder, held) if folder.manifest else held
        created = facts.get("createdAt")
        name, namespace = self.kind.names[step], self.observation.namespace
        return ArtifactEntry(
            step=step,
            name=name,
            id=checkpoint_id(namespace, name) if folder.kind == "RLCheckpoint" else None,
            uri=folder.uri,
            reward=facts.get("reward"),
            created_at=datetime.fromisoformat(created) if isinstance(created, str) else created,
        )


def deletion_problem(obj: Obj) -> Problem | None:
    """Return the error of the last deletion of the artifact's files, recorded in its object, or None."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    condition = next((c for c in conditions if c["type"] == DELETED and c["status"] == "False"), None)
    return Problem(reason=condition["reason"], message=condition.get("message", "")) if condition else None


def failed_deletion_status(removal: ArtifactDeletion, problem: Problem, now: datetime) -> Obj | None:
    """Return the object with a status that records the failed deletion, or None if the error is already recorded."""
    known = deletion_problem(removal.obj)
    if known is not None and known.reason == problem.reason:
        return None
    condition = _false_condition(DELETED, problem, now)
    return _status(removal.obj, {**(removal.obj.get("status") or {}), "conditions": [condition]})


def _changed_condition(held: Obj, message: str, now: datetime) -> Obj:
    """Return the condition of an artifact whose files changed after it became Ready. An equal existing condition is
    kept.
    """
    new = _false_condition(ConditionType.VERIFIED, Problem(reason=Reason.ARTIFACT_CHANGED, message=message), now)
    known = next((c for c in held.get("conditions") or [] if c["type"] == ConditionType.VERIFIED), new)
    return known if known["message"] == message else new


def _false_condition(kind: ConditionType, problem: Problem, now: datetime) -> Obj:
    return {
        "type": kind.value,
        "status": "False",
        "reason": problem.reason,
        "message": problem.message,
        "lastTransitionTime": now.replace(microsecond=0).isoformat().replace("+00:00", "Z"),
        "observedGeneration": 0,
    }


def artifact_object(observation: RunObservation, spec: RLRunSpec, artifact: ObservedArtifact) -> Obj:
    """Return the RLCheckpoint or RLAdapter with the operator's fields only, without fields that users may set."""
    obj = objects.artifact_object(
        artifact.kind,
        observation.namespace,
        observation.name,
        observation.uid,
        model=spec.model,
        step=artifact.step,
        uri=artifact.uri,
    )
    if spec.artifact_policy is ArtifactPolicy.delete:
        owner = observation.identity(0).owner_reference()
        obj["metadata"]["ownerReferences"] = [{k: v for k, v in owner.items() if k != "blockOwnerDeletion"}]
    return obj


def without_owner(obj: Obj) -> Obj:
    """Return the object as the operator applies it, but without an owner, so that it outlives its run."""
    metadata = {k: obj["metadata"].get(k) for k in ("name", "namespace", "labels")}
    spec = {k: obj["spec"].get(k) for k in ("runName", "runUid", "model", "step", "uri")}
    owned = {k: obj[k] for k in ("apiVersion", "kind")}
    return {**owned, "metadata": {**metadata, "ownerReferences": []}, "spec": spec}


def _has_uri_of(obj: Obj, folder: ObservedArtifact) -> bool:
    return bool(obj["spec"].get("uri") == folder.uri)


def _facts(artifact: ObservedArtifact, held: Obj) -> dict[str, Any]:
    manifest = artifact.manifest
    if manifest is None:
        raise ValueError(f"{artifact.uri} has no manifest")
    facts = ready_facts(manifest, held.get("digest") or artifact.digest)
    if artifact.kind == "RLAdapter":
        facts["deploymentState"] = held.get("deploymentState") or DeploymentState.not_deployed.value
    return facts


def _change_phase(obj: Obj, phase: ArtifactPhase, message: str) -> dict[str, Any]:
    held = {k: v for k, v in (obj.get("status") or {}).items() if k != "conditions"}
    return {**held, "phase": phase.value, "message": message}


def _status(obj: Obj, facts: dict[str, Any]) -> Obj:
    return {
        "apiVersion": API_VERSION,
        "kind": obj["kind"],
        "metadata": precondition_of(obj),
        "status": {k: v for k, v in facts.items() if k not in SERVING_STATUS_FIELDS},
    }


def _owners(obj: Obj) -> list[str]:
    return sorted(o["uid"] for o in obj["metadata"].get("ownerReferences") or [])
