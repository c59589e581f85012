"""Reads the manifests of adapters in S3."""

from rlrun.constants import Reason
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.serving import ServedAdapter
from rlrun.service.errors import ProblemError
from rlrun.storage.errors import Repeat
from rlrun.storage.layout import ADAPTER_WEIGHTS, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import ArtifactChanged, Store, StoreError


def policy_of(artifacts: Store, adapter: ServedAdapter, max_rank: int) -> tuple[PolicyRef, Manifest]:
    """Return the reference and the manifest of the policy to download for an adapter.

    Raises ProblemError if the manifest cannot be read or the adapter cannot be served.
    """
    try:
        manifest = artifacts.read_manifest(S3Uri.parse(adapter.uri), adapter.digest or "")
    except ArtifactChanged as error:
        raise ProblemError(424, error.problem) from error
    except ValueError as error:
        raise ProblemError.of(422, Reason.ADAPTER_DOWNLOAD_FAILED, str(error)) from error
    except StoreError as error:
        message = f"{error.problem.reason}: {error.problem.message}"
        status = 424 if error.repeat is Repeat.never else 503
        raise ProblemError.of(status, Reason.ADAPTER_DOWNLOAD_FAILED, message) from error
    if manifest is None:
        message = f"{adapter.uri} has no complete adapter, because it was deleted; deploy a different one"
        raise ProblemError.of(424, Reason.ADAPTER_DOWNLOAD_FAILED, message)
    entry = next((f for f in manifest.files if f.name == ADAPTER_WEIGHTS), None)
    if manifest.kind is not ArtifactKind.adapter or entry is None:
        message = (
            f"{adapter.uri} is not a LoRA adapter (a run with `lora.enabled: false` trains full weights); use it as "
            "the source of an RLModel instead, and set spec.deployed to false"
        )
        raise ProblemError.of(422, Reason.NOT_AN_ADAPTER, message)
    rank = manifest.details.get("rank")
    if isinstance(rank, int) and rank > max_rank:
        message = (
            f"the adapter's rank is {rank}, but the pool's engines accept at most {max_rank}; increase lora.rank in "
            "the RLModel, which restarts the pool, or set spec.deployed to false"
        )
        raise ProblemError.of(422, Reason.ADAPTER_RANK_TOO_HIGH, message)
    return PolicyRef(version=adapter.step, digest=entry.sha256, uri=adapter.uri), manifest
