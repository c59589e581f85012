"""RLCheckpoints and RLAdapters: the catalogue of what lies in S3.

S3 is the truth. An object appears when a manifest does and goes when its folder is gone; hence a retention that was
cut off between deleting files and deleting the object is completed by the next look. Objects are owned by their run
only with artifactPolicy Delete: with Retain they outlive it, as the files do.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rlrun.controller.observed import ArtifactObjectKind, Obj, Observed, Ref, SeenArtifact
from rlrun.controller.plan.retention import expired_steps
from rlrun.resources.naming import API_VERSION, RUN_LABEL, RUN_UID_LABEL, STEP_LABEL, artifact_name
from rlrun.schema.adapter import DeploymentState
from rlrun.schema.retention import ArtifactPolicy
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import MAX_LISTED, ArtifactSummary

FOLDER_KINDS: dict[str, ArtifactObjectKind] = {"checkpoints": "RLCheckpoint", "adapters": "RLAdapter"}


@dataclass
class ArtifactPlan:
    """Changes of the catalogue and of S3, and what the run's status lists."""

    s3_deletes: list[str] = field(default_factory=list)
    deletes: list[Ref] = field(default_factory=list)
    applies: list[Obj] = field(default_factory=list)
    statuses: list[Obj] = field(default_factory=list)
    checkpoints: list[ArtifactSummary] = field(default_factory=list)
    adapters: list[ArtifactSummary] = field(default_factory=list)


def plan_artifacts(seen: Observed, spec: RLRunSpec) -> ArtifactPlan | None:
    """None when S3 was not looked at: then nothing is known, and nothing may be deleted."""
    if seen.artifacts is None:
        return None
    plan = ArtifactPlan()
    plan.checkpoints = _plan_kind(plan, seen, spec, "RLCheckpoint", spec.checkpoints.keep_cloud)
    plan.adapters = _plan_kind(plan, seen, spec, "RLAdapter", spec.adapters.keep_last)
    return plan


def _plan_kind(
    plan: ArtifactPlan, seen: Observed, spec: RLRunSpec, kind: ArtifactObjectKind, keep: int
) -> list[ArtifactSummary]:
    objects = {int(o["spec"]["step"]): o for o in seen.artifact_objects if o["kind"] == kind}
    folders = {a.step: a for a in seen.artifacts or () if a.kind == kind}
    deployed = {step for step, o in objects.items() if o["spec"].get("deployed")}
    ready = {s for s, a in folders.items() if a.manifest is not None or is_ready(objects.get(s))}
    expired = expired_steps(ready, keep, deployed)
    plan.s3_deletes += [folders[step].uri for step in expired]
    plan.deletes += [Ref.of(objects[step]) for step in expired if step in objects]

    for step, obj in sorted(objects.items()):
        if step in folders or step in expired:
            continue
        if step in deployed:
            if obj.get("status", {}).get("phase") != "Failed":
                message = f"the files at {obj['spec']['uri']} are gone: undeploy the adapter and delete this object"
                plan.statuses.append(_status(obj, {"phase": "Failed", "message": message}))
        else:
            plan.deletes.append(Ref.of(obj))

    summaries = []
    for step in sorted(ready - set(expired)):
        folder, existing = folders[step], objects.get(step)
        desired = artifact_object(seen, spec, folder)
        if existing is None or _owners(existing) != _owners(desired):
            plan.applies.append(desired)
        facts = _facts(folder) if folder.manifest else dict((existing or {}).get("status", {}))
        if not is_ready(existing):
            plan.statuses.append(_status(existing or desired, facts))
        summaries.append(_summary(step, desired["metadata"]["name"], folder.uri, facts))
    return summaries[::-1][:MAX_LISTED]


def is_ready(obj: Obj | None) -> bool:
    """Whether the artifact's object says Ready."""
    return obj is not None and obj.get("status", {}).get("phase") == "Ready"


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


def _facts(artifact: SeenArtifact) -> dict[str, Any]:
    manifest = artifact.manifest
    if manifest is None:
        raise ValueError(f"{artifact.uri} has no manifest")
    reward = manifest.details.get("reward")
    facts: dict[str, Any] = {
        "phase": "Ready",
        "sizeBytes": manifest.size,
        "createdAt": manifest.created_at.replace(microsecond=0).isoformat().replace("+00:00", "Z"),
        "message": None,
    }
    if artifact.kind == "RLAdapter":
        facts["deploymentState"] = DeploymentState.not_deployed.value
    if manifest.policy_version is not None:
        facts["policyVersion"] = manifest.policy_version
    if isinstance(reward, int | float):
        facts["reward"] = float(reward)
    return {k: v for k, v in facts.items() if v is not None}


def _status(obj: Obj, facts: dict[str, Any]) -> Obj:
    return {
        "apiVersion": API_VERSION,
        "kind": obj["kind"],
        "metadata": {"name": obj["metadata"]["name"], "namespace": obj["metadata"]["namespace"]},
        "status": facts,
    }


def _owners(obj: Obj) -> list[str]:
    return sorted(o["uid"] for o in obj["metadata"].get("ownerReferences") or [])


def _summary(step: int, name: str, uri: str, facts: dict[str, Any]) -> ArtifactSummary:
    created = facts.get("createdAt")
    return ArtifactSummary(
        step=step,
        name=name,
        uri=uri,
        reward=facts.get("reward"),
        created_at=datetime.fromisoformat(created) if isinstance(created, str) else created,
    )
