"""Policy versions in S3: written whole before anybody hears of them, and only the newest few stay."""

import logging
import threading
from typing import Any

from rlrun.artifacts.layout import RunLayout, S3Uri
from rlrun.artifacts.manifest import ArtifactKind
from rlrun.artifacts.store import Store, StoreError
from rlrun.schema.wire import PolicyKind, PolicyRef, SessionSpec

from rlrun_trainer import adapters, weights
from rlrun_trainer.files import Files, Folder, source_of

log = logging.getLogger(__name__)


def manifest_facts(spec: SessionSpec) -> dict[str, Any]:
    """What the manifests of a run's artifacts say of the run."""
    return {
        "run_name": spec.run_name,
        "run_uid": spec.run_uid,
        "namespace": spec.namespace,
        "model": spec.model,
    }


def adapter_details(spec: SessionSpec, policy_version: int, reward: float | None) -> dict[str, Any]:
    """What the manifests of adapters and checkpoints say of the adapter, or of all weights."""
    details: dict[str, Any] = {"model": spec.model, "kind": spec.kind.value, "policy_version": policy_version}
    if spec.kind is PolicyKind.adapter:
        details |= {
            "rank": spec.lora_rank,
            "alpha": spec.lora_alpha,
            "target_modules": list(spec.target_modules),
        }
    return details if reward is None else details | {"reward": reward}


class Publisher:
    """Publishes one session's policies. Its methods block; call them from threads, one publish at a time."""

    def __init__(self, store: Store, spec: SessionSpec, keep: int) -> None:
        self._store = store
        self._spec = spec
        self._layout = RunLayout(S3Uri.parse(spec.run_uri))
        self._keep = keep
        self._lock = threading.Lock()
        # Versions of an earlier trainer process are older than all of this one, whatever their number: after a rewind
        # the numbers repeat.
        self._published = store.list_folders(self._layout.root / "policy")

    def publish(self, version: int, files: Files) -> PolicyRef:
        """Writes the adapter or the model as that version; once it returns, any reader of S3 finds it whole."""
        sha = weights.digest(files) if isinstance(files, Folder) else adapters.digest(files)
        uri = self._layout.policy(version, sha)
        self._store.upload_artifact(
            source_of(files),
            uri,
            ArtifactKind.policy,
            **manifest_facts(self._spec),
            step=version,
            policy_version=version,
            details=adapter_details(self._spec, version, None),
        )
        name = uri.key.rsplit("/", 1)[-1]
        with self._lock:
            self._published = [n for n in self._published if n != name] + [name]
        return PolicyRef(version=version, digest=sha, uri=str(uri), kind=self._spec.kind)

    def prune(self) -> None:
        """Deletes all but the newest published versions. What cannot be deleted now is tried again next time."""
        with self._lock:
            doomed = self._published[: -self._keep]
            for name in doomed:
                try:
                    self._store.delete_prefix(self._layout.root / "policy" / name)
                except StoreError as error:
                    log.warning("could not prune policy %s: %s", name, error)
                    return
                self._published.remove(name)
