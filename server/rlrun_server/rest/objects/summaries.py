"""Summaries of objects for lists."""

from datetime import datetime
from typing import Any

from rlrun.api.base.phases import Phase
from rlrun.api.base.schema import Schema
from rlrun.api.model import RLModelSpec
from rlrun.api.run_status import EndedAttempt
from rlrun.constants import USER_ANNOTATION, Driver, Reason
from rlrun.kube.objects import Obj, annotation, is_client_run, max_steps_of, ordered_expiry
from rlrun.kube.references import find_model
from rlrun.kube.run_phase import explain_phase


class RunSummary(Schema):
    """Summary of a run, as shown in lists."""

    namespace: str
    name: str
    uid: str
    display_name: str | None = None
    phase: str
    reason: str = ""
    """Reason for the phase, or reason why the run waits."""
    message: str = ""
    model: str
    driver: Driver = Driver.orchestrator
    environments: list[str]
    """Name of each environment, or its id if it has no name."""
    step: int = 0
    max_steps: int = 0
    """Maximum number of steps, or 0 if a client's program decides when to stop."""
    reward: float | None = None
    eta_seconds: float | None = None
    restarts: int = 0
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    user: str = ""
    """User who created the run. Empty if unknown."""
    attempt: int = 1
    """Number of the newest attempt."""
    attempt_started_at: datetime | None = None
    """Start of the current attempt."""
    gpus: int | None = None
    """Number of GPUs of the newest attempt."""
    ended_attempts: list[EndedAttempt] = []
    """Attempts that have ended and are not in the usage log yet."""


class ArtifactSummary(Schema):
    """Summary of a checkpoint or adapter, as shown in lists."""

    namespace: str
    name: str
    uid: str
    run: str
    run_uid: str
    model: str
    step: int
    phase: str
    reward: float | None = None
    size_bytes: int | None = None
    digest: str | None = None
    """SHA-256 of the manifest, which lists the digests of all files. A download verifies it."""
    shared_with: list[str]
    deployed: bool | None = None
    """True if a serving pool should serve the adapter. Only for adapters."""
    deployment_state: str | None = None
    deployment_model: str | None = None
    """Name of the model in requests to the serving pool. Only for adapters."""
    message: str | None = None
    created_at: datetime
    expires_at: datetime | None = None
    """Time from which retention deletes the artifact."""


class ModelSummary(Schema):
    """A base model that runs may use."""

    id: str
    name: str
    """Name of the RLModel."""
    seq_len: int | None = None
    lora_rank: int | None = None
    """Default and maximum LoRA rank of runs."""
    full_fine_tuning: bool = False
    shared: bool = False
    """True if the runs of a namespace share a trainer, so that programs of the Tinker SDK can use the model."""
    active_runs: int | None = None


def summarize_run(run: Obj) -> RunSummary:
    """Return the summary of an RLRun. A run without a status is Pending."""
    metadata, spec, status = _parts(run)
    progress = status.get("progress") or {}
    reason, message = explain_phase(status)
    if not status.get("phase") and not reason:
        reason, message = Reason.NOT_SEEN_YET, "the operator has not processed the run yet"
    return RunSummary(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        display_name=spec.get("name"),
        phase=status.get("phase") or Phase.pending.value,
        reason=reason,
        message=message,
        model=str(spec.get("model") or ""),
        driver=Driver.client if is_client_run(run) else Driver.orchestrator,
        environments=[str(e.get("name") or e.get("id") or "") for e in spec.get("env") or []],
        step=int(progress.get("step") or 0),
        max_steps=max_steps_of(run),
        reward=progress.get("reward"),
        eta_seconds=progress.get("etaSeconds"),
        restarts=int(status.get("restarts") or 0),
        created_at=metadata["creationTimestamp"],
        started_at=status.get("startTime"),
        completed_at=status.get("completionTime"),
        user=annotation(run, USER_ANNOTATION),
        attempt=int(status.get("attempt") or 1),
        attempt_started_at=status.get("attemptStartTime"),
        gpus=(status.get("resolved") or {}).get("gpus"),
        ended_attempts=status.get("endedAttempts") or [],
    )


def summarize_artifact(artifact: Obj) -> ArtifactSummary:
    """Return the summary of an RLCheckpoint or RLAdapter."""
    metadata, spec, status = _parts(artifact)
    return ArtifactSummary(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        run=str(spec.get("runName") or ""),
        run_uid=str(spec.get("runUid") or ""),
        model=str(spec.get("model") or ""),
        step=int(spec.get("step") or 0),
        phase=str(status.get("phase") or "Pending"),
        reward=status.get("reward"),
        size_bytes=status.get("sizeBytes"),
        digest=status.get("digest"),
        shared_with=list(spec.get("sharedWith") or []),
        deployed=bool(spec.get("deployed")) if artifact.get("kind") == "RLAdapter" else None,
        deployment_state=status.get("deploymentState"),
        deployment_model=status.get("deploymentModel"),
        message=status.get("message"),
        created_at=status.get("createdAt") or metadata["creationTimestamp"],
        expires_at=ordered_expiry(artifact) or status.get("expiresAt"),
    )


def summarize_model(model: Obj) -> ModelSummary:
    """Return the summary of an RLModel. It omits the pod configuration, whose variables may hold credentials."""
    metadata, spec, status = _parts(model)
    model_id = str(spec.get("id") or "")
    valid = find_model(model_id, [model])
    return ModelSummary(
        id=model_id,
        name=metadata["name"],
        seq_len=spec.get("seqLen"),
        lora_rank=(spec.get("lora") or {}).get("rank"),
        full_fine_tuning=bool((spec.get("trainer") or {}).get("fullFineTuning")),
        shared=isinstance(valid, RLModelSpec) and valid.has_shared_trainer,
        active_runs=status.get("runs"),
    )


def _parts(obj: Obj) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    return obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
