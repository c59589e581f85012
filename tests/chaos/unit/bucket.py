"""The bucket of a scenario: the fake S3 with what the invariants read, and the operator's own S3 code on top."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import Manifest
from rlrun.storage.store import Store
from rlrun_operator.storage.artifact_store import ArtifactStore, Installation

from tests.chaos.invariants import Stored
from tests.chaos.unit.faults import FaultyBucket, Gate
from tests.support.fake_s3 import FakeS3, store_on

BUCKET = "rlrun"


class MemoryBucket(FakeS3):
    """The bucket of a scenario, as the invariants see it."""

    def __init__(self) -> None:
        super().__init__(BUCKET)
        self._hashes: dict[str, tuple[bytes, Stored]] = {}
        self._manifests: dict[str, tuple[bytes, Manifest | None]] = {}

    def files(self) -> dict[str, Stored]:
        """Size and hash by key."""
        found = {}
        for key, data in self.data.items():
            known = self._hashes.get(key)
            if known is None or known[0] is not data:
                known = self._hashes[key] = (data, Stored(len(data), hashlib.sha256(data).hexdigest()))
            found[key] = known[1]
        return found

    def manifests(self) -> dict[str, Manifest]:
        """By key of the folder; only those that can be read."""
        found = {}
        for key, data in self.data.items():
            folder, _, name = key.rpartition("/")
            if name != MANIFEST:
                continue
            known = self._manifests.get(key)
            if known is None or known[0] is not data:
                known = self._manifests[key] = (data, _parse(data))
            if known[1] is not None:
                found[folder] = known[1]
        return found


class BucketArtifacts(ArtifactStore):
    """The operator's own S3 code over a bucket in memory: every call in the loop's thread, no verdict remembered."""

    def __init__(self, store: Store) -> None:
        super().__init__(1, lambda: True)
        self._memory = store
        self.installation = Installation(S3Uri(BUCKET, ""), "this-cluster")

    async def _call(
        self, variables: Mapping[str, str], work: Callable[[Store], Any], silence_seconds: float | None = None
    ) -> Any:
        # The clock of the story is not the clock on the wall by which verdicts grow old.
        self._checks.clear()
        return work(self._memory)

    async def check(self, variables: Mapping[str, str], bucket: str) -> Any:
        self._checks.clear()
        return await super().check(variables, bucket)


def store_of(bucket: MemoryBucket, gate: Gate | None = None) -> Store:
    """A real store whose client is the bucket, through a gate if there is one. Requests come one after the other."""
    return store_on(FaultyBucket(bucket, gate or Gate()))


def _parse(data: bytes) -> Manifest | None:
    try:
        return Manifest.model_validate_json(data)
    except ValidationError:
        return None
