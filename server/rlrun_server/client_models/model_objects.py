"""Pure functions for RLRuns that are models of clients' programs: they build the RLRun that a request creates, and read
the state that the client sees.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rlrun.api.base.phases import Phase
from rlrun.api.base.received import InputInvalid, InputLimits, read_json
from rlrun.api.model import RLModelSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import (
    API_VERSION,
    CLIENT_METADATA_ANNOTATION,
    CLIENT_SESSION_LABEL,
    REQUEST_ANNOTATION,
    USER_ANNOTATION,
    Driver,
    Reason,
)
from rlrun.kube.objects import Obj, annotation
from rlrun.kube.references import shared_pool_name
from rlrun.kube.run_phase import explain_phase
from rlrun.protocol.client_run import MAX_METADATA_BYTES, MAX_METADATA_ENTRIES, ClientModel, ModelId, NewClientModel
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import pool_engines_host, pool_trainer_url

from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.objects.run_bodies import digest_of

LORA_ALPHA = 32
"""LoRA alpha of the adapters. The SDK has no field for alpha, and other servers use this value."""
MAX_NAMED = 20
"""Maximum number of models or saved states that an error lists."""
METADATA_LIMITS = InputLimits(size=2 * MAX_METADATA_BYTES)
POOL_DIGEST = 8
"""Number of characters of the digest at the end of a pool's name."""


@dataclass(frozen=True)
class ModelStart:
    """Base model, rank and initial weights of a model."""

    base_model: str
    rank: int
    checkpoint_id: str | None = None
    """Id of the RLCheckpoint, or None to start with a new adapter."""


def refused_field(field: str, text: str, reason: str = Reason.INVALID_REQUEST) -> RestError:
    """Return the error for a field of the request."""
    return RestError(422, reason, f"{field}: {text}")


def listed(names: Iterable[str]) -> str:
    """Return the names as text, sorted. Beyond MAX_NAMED, names are only counted."""
    found = sorted(names)
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return ", ".join(found[:MAX_NAMED]) + more if found else "none"


def check_base_model(model: RLModelSpec, rank: int, others: Iterable[RLModelSpec]) -> None:
    """Check that clients' programs can train adapters of this rank for the model.

    Raises RestError. Its message suggests suitable models from `others`.
    """
    if not model.has_shared_trainer:
        text = (
            f"each run of RLModel {model.id} has its own trainer, which clients' programs cannot use. Choose "
            f"another model ({listed(other.id for other in others if other.has_shared_trainer)}), or ask the platform "
            "team to set sharing.mode: Namespace in the RLModel. A shared trainer is one process with at most one GPU."
        )
        raise refused_field("base_model", text, Reason.CLIENT_NEEDS_POOL)
    if rank > model.lora.rank:
        higher = [f"{other.id} ({other.lora.rank})" for other in others if rank <= other.lora.rank]
        text = (
            f"{rank} is above the maximum of RLModel {model.id}, {model.lora.rank}. Set it to {model.lora.rank} or "
            f"lower, choose a model with a higher maximum ({listed(higher)}), or ask the platform team to raise "
            "lora.rank of the RLModel."
        )
        raise refused_field("rank", text, Reason.LORA_RANK_TOO_HIGH)


def metadata_text(asked: NewClientModel) -> str:
    """Return the annotation that stores the user's metadata. Raises RestError above MAX_METADATA_BYTES."""
    text = json.dumps(asked.user_metadata, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_METADATA_BYTES:
        raise refused_field("user_metadata", f"is {size} bytes as JSON; send at most {MAX_METADATA_BYTES}")
    return text


def request_digest(asked: NewClientModel, user: str) -> str:
    """Return a digest of the user and the request, by which a repeated request is recognized."""
    return digest_of(json.dumps([user, asked.to_json_dict()], sort_keys=True).encode())


def new_run(model: ModelId, asked: NewClientModel, start: ModelStart, user: str) -> Obj:
    """Return the RLRun to create. Raises RestError if the metadata is too large."""
    spec: dict[str, Any] = {
        "model": start.base_model,
        "driver": Driver.client.value,
        "loraAlpha": LORA_ALPHA,
        "lora": {"rank": start.rank},
        # The client's program deletes what it no longer needs.
        "checkpoints": {"keepCloud": -1},
        "adapters": {"keepLast": -1},
    }
    if asked.seed is not None:
        spec["seed"] = asked.seed
    if asked.load is not None:
        spec |= {"checkpointId": start.checkpoint_id, "checkpointOptimizer": asked.load.optimizer}
    annotations = {
        USER_ANNOTATION: user,
        REQUEST_ANNOTATION: request_digest(asked, user),
        CLIENT_METADATA_ANNOTATION: metadata_text(asked),
    }
    labels = {CLIENT_SESSION_LABEL: model.session.group}
    metadata = {"name": model.run, "namespace": model.namespace, "labels": labels, "annotations": annotations}
    return {"apiVersion": API_VERSION, "kind": "RLRun", "metadata": metadata, "spec": spec}


def rank_of(run: Obj) -> int | None:
    """Return the LoRA rank of a run with `driver: Client`, or None for other runs."""
    spec = run.get("spec") or {}
    rank = (spec.get("lora") or {}).get("rank")
    return rank if spec.get("driver") == Driver.client and isinstance(rank, int) else None


def to_client_model(run: Obj) -> ClientModel:
    """Return the state of a model, without its token and its saved states."""
    metadata, spec = run["metadata"], run.get("spec") or {}
    status = RLRunStatus.parse(run.get("status"))
    phase, model = status.phase or Phase.pending, str(spec.get("model") or "")
    has_ended = phase.finished or bool(spec.get("stop") or metadata.get("deletionTimestamp"))
    pool = None if status.pool is None or has_ended else status.pool.name
    # The operator writes the status, but no object may redirect a client to another Service.
    if pool is not None and pool != shared_pool_name(model, pool[-POOL_DIGEST:]):
        pool = None
    return ClientModel(
        namespace=metadata["namespace"],
        run=metadata["name"],
        uid=metadata["uid"],
        base_model=model,
        rank=rank_of(run) or 0,
        created_at=metadata["creationTimestamp"],
        user_metadata=_user_metadata(run),
        phase=phase,
        has_ended=has_ended,
        waiting=_waiting_problem(run, status, phase),
        trainer_url=pool_trainer_url(metadata["namespace"], pool) if pool is not None else None,
        inference_host=pool_engines_host(metadata["namespace"], pool) if pool is not None else None,
    )


def is_silent(run: Obj) -> bool:
    """Return whether the operator has suspended the run because its client sent no requests."""
    status = RLRunStatus.parse(run.get("status"))
    reasons = {status.reason, *(condition.reason for condition in status.conditions)}
    return bool((run.get("spec") or {}).get("suspend")) and Reason.CLIENT_SILENT in reasons


def _user_metadata(run: Obj) -> dict[str, Any]:
    try:
        found = read_json(annotation(run, CLIENT_METADATA_ANNOTATION) or "{}", limits=METADATA_LIMITS)
    except InputInvalid:
        # Users can change annotations.
        return {}
    return found if isinstance(found, dict) and len(found) <= MAX_METADATA_ENTRIES else {}


def _waiting_problem(run: Obj, status: RLRunStatus, phase: Phase) -> Problem | None:
    reason, message = explain_phase(run.get("status") or {})
    if run["metadata"].get("deletionTimestamp"):
        return Problem(reason=Reason.RUN_FINISHED, message="The run is being deleted. Create a new model.")
    if phase is Phase.running and not status.reason:
        return None
    if phase is Phase.queued and status.queue is not None and status.queue.runs_ahead:
        count = status.queue.runs_ahead
        message = f"{count} {'run' if count == 1 else 'runs'} ahead. {message}"
    if not reason:
        reason, message = Reason.NOT_SEEN_YET, "The operator has not processed the run yet."
    return Problem(reason=reason, message=message)
