"""Checkpoints and adapters in the format of the hosted API."""

from rlrun.api.adapter import DeploymentState
from rlrun.api.base.phases import ArtifactPhase
from rlrun.kube.objects import Obj

from rlrun_server.hosted_api.base.wire import Json, upper_snake
from rlrun_server.hosted_api.objects.run_objects import newest, optional_text


def phase_of(artifact: Obj) -> str:
    """Return PENDING, UPLOADING, READY, FAILED or DELETING."""
    return str((artifact.get("status") or {}).get("phase") or ArtifactPhase.pending).upper()


def is_leaving(artifact: Obj) -> bool:
    """Return whether the artifact is being deleted, a state that the hosted API lacks."""
    return phase_of(artifact) == "DELETING" or bool(artifact["metadata"].get("deletionTimestamp"))


def checkpoint_of(checkpoint: Obj) -> Json:
    """Convert an RLCheckpoint to the format of the hosted API."""
    metadata, spec, status = checkpoint["metadata"], checkpoint["spec"], checkpoint.get("status") or {}
    return {
        "id": metadata["name"],
        "rftRunId": spec["runName"],
        "step": spec["step"],
        "storageUrl": spec["uri"],
        "status": phase_of(checkpoint),
        "sizeBytes": status.get("sizeBytes"),
        "createdAt": metadata["creationTimestamp"],
        "uploadedAt": status.get("createdAt"),
    }


def adapter_of(adapter: Obj, user_id: str, display_name: str | None) -> Json:
    """Convert an RLAdapter to the format of the hosted API. `display_name` is the display name of its run."""
    metadata, spec, status = adapter["metadata"], adapter["spec"], adapter.get("status") or {}
    changes = [c.get("lastTransitionTime") for c in status.get("conditions") or [] if isinstance(c, dict)]
    state = deployment_state(adapter)
    failed = (DeploymentState.deploy_failed, DeploymentState.unload_failed)
    return {
        "id": metadata["name"],
        "displayName": optional_text(display_name),
        "userId": user_id,
        "teamId": metadata["namespace"],
        "rftRunId": spec["runName"],
        "baseModel": spec["model"],
        "step": spec["step"],
        "status": phase_of(adapter),
        "deploymentStatus": upper_snake(state.value),
        "deployedAt": status.get("deployedAt"),
        "deploymentError": optional_text(status.get("deploymentMessage")) if state in failed else None,
        "createdAt": metadata["creationTimestamp"],
        "updatedAt": newest(
            [metadata["creationTimestamp"], status.get("createdAt"), status.get("deployedAt"), *changes]
        ),
    }


def deployment_state(adapter: Obj) -> DeploymentState:
    """Return the state of the deployment, taking into account a request that the operator has not processed yet."""
    try:
        state = DeploymentState((adapter.get("status") or {}).get("deploymentState") or DeploymentState.not_deployed)
    except ValueError:
        state = DeploymentState.not_deployed
    wanted = bool(adapter["spec"].get("deployed"))
    if wanted and state is DeploymentState.not_deployed:
        return DeploymentState.deploying
    if not wanted and state in (DeploymentState.deployed, DeploymentState.deploying):
        return DeploymentState.unloading
    return state
