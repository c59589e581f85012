"""Helpers for objects as the API server sends them: dictionaries with metadata, labels and annotations."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlrun.api.base.phases import ArtifactPhase
from rlrun.constants import API_VERSION, ATTEMPT_LABEL, RUN_LABEL, RUN_UID_LABEL, STEP_LABEL, Driver

Obj = dict[str, Any]
"""Kubernetes object as sent by the API server."""
Labels = Mapping[str, str]
"""Labels to select objects by. An empty value selects every object that has the label."""


@dataclass(frozen=True)
class ObjectRef:
    """Reference to an observed object. The UID prevents the deletion of a later object with the same name."""

    kind: str
    name: str
    uid: str | None = None
    resource_version: str | None = None
    """resourceVersion that the object must have to be deleted. None allows any version."""
    grace_seconds: int | None = None
    """Grace period of a deletion in seconds. None uses the object's own period. 0 removes a pod whose node does not
    respond.
    """

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "ObjectRef":
        """Return the reference to an object."""
        return cls(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("uid"))


def precondition_of(obj: Mapping[str, Any]) -> Obj:
    """Return the metadata that makes the API server reject a write (409) if the object has changed or was recreated.

    The resourceVersion alone detects both; the uid is left out because the API server ignores it in a status update.
    """
    return {key: obj["metadata"][key] for key in ("name", "namespace", "resourceVersion") if key in obj["metadata"]}


def label(obj: Mapping[str, Any], key: str) -> str:
    """Return the label's value, or an empty string if it is missing."""
    return str((obj.get("metadata", {}).get("labels") or {}).get(key, ""))


def annotation(obj: Mapping[str, Any], key: str) -> str:
    """Return the annotation's value, or an empty string if it is missing."""
    return str((obj.get("metadata", {}).get("annotations") or {}).get(key, ""))


def attempt_of(obj: Mapping[str, Any]) -> int:
    """Return the attempt that a child belongs to, or 0 if its label is missing or not a number."""
    text = label(obj, ATTEMPT_LABEL)
    return int(text) if text.isdigit() else 0


def phase_of(obj: Mapping[str, Any]) -> str:
    """Return the phase in the object's status, or an empty string if it has none yet."""
    return str((obj.get("status") or {}).get("phase") or "")


def is_client_run(run: Mapping[str, Any]) -> bool:
    """Return whether a client's program runs the RLRun's training loop. Such a run has no pods of its own."""
    return (run.get("spec") or {}).get("driver") == Driver.client


def max_steps_of(run: Mapping[str, Any]) -> int:
    """Return the RLRun's maximum number of steps, or 0 if a client's program decides when to stop."""
    progress = (run.get("status") or {}).get("progress") or {}
    return 0 if is_client_run(run) else int(progress.get("maxSteps") or (run.get("spec") or {}).get("maxSteps") or 0)


def true_condition(obj: Mapping[str, Any] | None, *kinds: str) -> Obj | None:
    """Return the first condition that is True and has one of these types, or None."""
    conditions: list[Obj] = ((obj or {}).get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] in kinds and c.get("status") == "True"), None)


def is_artifact_ready(obj: Mapping[str, Any] | None) -> bool:
    """Return whether the RLCheckpoint or RLAdapter exists and is Ready."""
    return obj is not None and phase_of(obj) == ArtifactPhase.ready.value


def ordered_expiry(artifact: Mapping[str, Any] | None) -> datetime | None:
    """Return `spec.expiresAt` of the RLCheckpoint or RLAdapter, or None if the field is unset or invalid."""
    try:
        expires_at = datetime.fromisoformat(str(((artifact or {}).get("spec") or {}).get("expiresAt")))
        return None if expires_at.tzinfo is None else expires_at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def artifact_name(run: str, run_uid: str, step: int) -> str:
    """Return the name of the RLCheckpoint or RLAdapter of one step.

    It contains the run's UID, because artifacts outlive their run and a later run can have the same name.
    """
    return f"{run}-step-{step:06d}-{run_uid[:8]}"


def artifact_object(kind: str, namespace: str, run_name: str, run_uid: str, *, model: str, step: int, uri: str) -> Obj:
    """Return an RLCheckpoint or RLAdapter that has only its identifying fields, without the fields that users set."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": artifact_name(run_name, run_uid, step),
            "namespace": namespace,
            "labels": {
                RUN_LABEL: run_name,
                RUN_UID_LABEL: run_uid,
                STEP_LABEL: str(step),
                "app.kubernetes.io/part-of": "rlrun",
            },
        },
        "spec": {"runName": run_name, "runUid": run_uid, "model": model, "step": step, "uri": uri},
    }


def model_object_name(model_id: str) -> str:
    """Return a valid object name for a model id such as `Qwen/Qwen3-4B`."""
    return re.sub(r"[^a-z0-9]+", "-", model_id.lower()).strip("-")


def controller_kind(obj: Mapping[str, Any]) -> str | None:
    """Return the kind of the object's controller, or None if it has none."""
    owners = (obj.get("metadata") or {}).get("ownerReferences") or []
    return next((str(owner.get("kind")) for owner in owners if owner.get("controller")), None)
