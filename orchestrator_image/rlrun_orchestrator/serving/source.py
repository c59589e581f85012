"""Adapter artifacts in S3, read with credentials that may change while this process lives."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from rlrun.artifacts.layout import S3Uri
from rlrun.artifacts.manifest import ArtifactKind, Manifest
from rlrun.artifacts.store import Store, StoreError, Unreachable
from rlrun.schema.serving import ServedAdapter
from rlrun.schema.wire import PolicyKind, PolicyRef, Problem

from rlrun_orchestrator.answers import Refusal
from rlrun_orchestrator.sidecar.downloads import WEIGHTS


class Artifacts(Protocol):
    """The part of `rlrun.artifacts.store.Store` that is used here. Both methods raise StoreError."""

    def read_manifest(self, uri: S3Uri) -> Manifest | None:
        """None where there is none."""
        ...

    def download_artifact(self, uri: S3Uri, dest: Path) -> Manifest:
        """Bring a verified artifact to `dest`, all or nothing."""
        ...


class MountedStore:
    """`Artifacts` with the credentials that lie in a mounted Secret now."""

    def __init__(self, folder: Path, make: Callable[[Mapping[str, str]], Artifacts] | None = None) -> None:
        self._folder = folder
        self._make = make or store_with
        self._held: tuple[dict[str, str], Artifacts] | None = None

    def read_manifest(self, uri: S3Uri) -> Manifest | None:
        """See `Artifacts`."""
        return self._store().read_manifest(uri)

    def download_artifact(self, uri: S3Uri, dest: Path) -> Manifest:
        """See `Artifacts`."""
        return self._store().download_artifact(uri, dest)

    def _store(self) -> Artifacts:
        variables = read_variables(self._folder)
        if self._held is None or self._held[0] != variables:
            # The one before is not closed: a download of another thread may still use it.
            self._held = (variables, self._make(variables))
        return self._held[1]


def read_variables(folder: Path) -> dict[str, str]:
    """The variables in a mounted Secret; a Secret that is missing has none."""
    if not folder.is_dir():
        return {}
    return {p.name: p.read_text("utf-8").strip() for p in sorted(folder.iterdir()) if p.name.startswith("AWS_")}


def store_with(variables: Mapping[str, str]) -> Store:
    """A store with these AWS_* variables. Raises StoreError."""
    return Store(
        endpoint_url=variables.get("AWS_ENDPOINT_URL_S3"),
        access_key_id=variables.get("AWS_ACCESS_KEY_ID"),
        secret_access_key=variables.get("AWS_SECRET_ACCESS_KEY"),
        session_token=variables.get("AWS_SESSION_TOKEN"),
        region=variables.get("AWS_DEFAULT_REGION"),
    )


def policy_of(artifacts: Artifacts, adapter: ServedAdapter, max_rank: int) -> PolicyRef:
    """What has to be downloaded for the adapter. Raises Refusal with what keeps it from being served."""
    try:
        manifest = artifacts.read_manifest(S3Uri.parse(adapter.uri))
    except ValueError as error:
        raise Refusal(422, Problem(reason="AdapterDownloadFailed", message=str(error))) from error
    except StoreError as error:
        message = f"{error.problem.reason}: {error.problem.message}"
        status = 503 if isinstance(error, Unreachable) else 424
        raise Refusal(status, Problem(reason="AdapterDownloadFailed", message=message)) from error
    if manifest is None:
        message = f"nothing complete lies at {adapter.uri}: the adapter was deleted; deploy another one"
        raise Refusal(424, Problem(reason="AdapterDownloadFailed", message=message))
    entry = next((f for f in manifest.files if f.name == WEIGHTS[PolicyKind.adapter]), None)
    if manifest.kind is not ArtifactKind.adapter or entry is None:
        message = (
            f"{adapter.uri} holds no LoRA adapter (a run with lora.enabled false makes whole models): make it the "
            "source of an RLModel instead, and set spec.deployed to false"
        )
        raise Refusal(422, Problem(reason="NotAnAdapter", message=message))
    rank = manifest.details.get("rank")
    if isinstance(rank, int) and rank > max_rank:
        message = (
            f"the adapter's rank is {rank} and the pool's engines take {max_rank} at most: raise lora.rank in the "
            "RLModel, which starts the pool anew, or set spec.deployed to false"
        )
        raise Refusal(422, Problem(reason="AdapterRankTooHigh", message=message))
    return PolicyRef(version=adapter.step, digest=entry.sha256, uri=adapter.uri)
