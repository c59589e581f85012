"""Cache of a session's newest policies. Engines load them from here while S3 is unreachable."""

from dataclasses import dataclass
from pathlib import Path

from rlrun.protocol.policy import PolicyRef
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import Manifest

from rlrun_trainer.artifacts.artifact_files import Files, TempFolder, discard

KEPT_IN_MEMORY = 4
"""Number of adapters to keep, enough for engines that restart during a step."""
KEPT_ON_DISK = 2
"""Number of full sets of weights to keep: the engines' current one and the next one."""


@dataclass(frozen=True)
class CachedPolicy:
    """Policy with its files."""

    ref: PolicyRef
    uri: S3Uri
    manifest: Manifest
    files: Files


class PolicyCache:
    """Cache of policies by name. It owns their files and drops the oldest policies."""

    def __init__(self) -> None:
        self._kept: dict[str, CachedPolicy] = {}

    def put(self, policy: CachedPolicy, busy: CachedPolicy | None = None) -> None:
        """Add the policy. The `busy` policy, whose files are being uploaded, is not dropped."""
        older = self._kept.pop(policy.ref.name, None)
        if older is not None and older.files is not policy.files and older is not busy:
            discard(older.files)
        self._kept[policy.ref.name] = policy
        limit = KEPT_ON_DISK if isinstance(policy.files, TempFolder) else KEPT_IN_MEMORY
        for name in list(self._kept)[:-limit]:
            if self._kept[name] is not busy:
                discard(self._kept.pop(name).files)

    def file(self, name: str, file: str) -> bytes | Path | None:
        """Return a file of the policy or its manifest, or None if the policy is not cached or has no such file."""
        policy = self._kept.get(name)
        if policy is None:
            return None
        if file == MANIFEST:
            return policy.manifest.model_dump_json(by_alias=True, exclude_none=True).encode()
        if all(entry.name != file for entry in policy.manifest.files):
            return None
        return policy.files.path / file if isinstance(policy.files, TempFolder) else policy.files[file]

    def clear(self) -> None:
        """Drop all policies."""
        for policy in self._kept.values():
            discard(policy.files)
        self._kept.clear()
