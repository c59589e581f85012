"""Artifacts of runs in S3, as the operator sees them: one manifest for each folder."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.api.usage import UsageRecord, with_records
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.storage.errors import ArtifactChanged
from rlrun.storage.layout import RunLayout
from rlrun.storage.manifest import ArtifactKind, FileEntry, Manifest
from rlrun_operator.planning.actions import RunFilesDeletion
from rlrun_operator.planning.artifact_catalog import ObservedArtifact
from rlrun_operator.planning.artifacts import FOLDER_KINDS
from rlrun_operator.storage.artifact_store import ReadyArtifacts

from tests.support.clocks import START

DIGEST = "d" * 64
"""Digest of a checkpoint that no test has made."""


def manifest(step: int, size: int = 100, **details: Any) -> Manifest:
    return Manifest(
        kind=ArtifactKind.checkpoint,
        files=[FileEntry(name="adapter_model.safetensors", size=size, sha256="0" * 64)],
        created_at=START,
        step=step,
        policy_version=step,
        details=details,
    )


def digest_of(held: Manifest) -> str:
    return hashlib.sha256(held.model_dump_json().encode()).hexdigest()


class FakeArtifacts:
    def __init__(self) -> None:
        self.folders: dict[str, Manifest | None] = {}
        self.broken: dict[str, str] = {}
        """What a folder lacks of its manifest."""
        self.files: dict[str, bytes] = {}
        self.usage: dict[str, bytes] = {}
        """Files of the usage log."""
        self.problem: Problem | None = None
        self.purged: list[RunFilesDeletion] = []
        self.errors: dict[str, Exception] = {}
        """Errors that methods raise, by the name of the method."""
        self.lists = 0

    def _fail(self, method: str) -> None:
        if method in self.errors:
            raise self.errors[method]

    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        return self.problem

    async def list(
        self, variables: Mapping[str, str], layout: RunLayout, ready: ReadyArtifacts
    ) -> list[ObservedArtifact]:
        self._fail("list")
        self.lists += 1
        found = []
        for folder, kind in FOLDER_KINDS.items():
            for uri, held in sorted(self.folders.items()):
                prefix = f"{layout.root / folder}/step-"
                if uri.startswith(prefix):
                    step = int(uri.removeprefix(prefix))
                    known = ready.get((kind, step))
                    problem = self.broken.get(uri)
                    if known is not None and held is None:
                        problem = "manifest.json is missing"
                    digest = "" if held is None else digest_of(held)
                    read = problem is not None or known is None or digest != known.digest
                    found.append(ObservedArtifact(kind, step, uri, held if read else None, problem, digest))
        return found

    async def verify(self, variables: Mapping[str, str], uri: str, digest: str = "") -> str | Problem:
        self._fail("verify")
        if uri in self.broken:
            return Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message=self.broken[uri])
        held = self.folders.get(uri)
        found = digest or DIGEST if held is None else digest_of(held)
        return ArtifactChanged(uri, digest, found).problem if digest and found != digest else found

    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        self._fail("put")
        self.files[uri] = data

    async def write_tombstone(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        self._fail("write_tombstone")
        self.files[uri] = data

    async def add_usage(self, variables: Mapping[str, str], uri: str, records: Sequence[UsageRecord]) -> None:
        self._fail("add_usage")
        content = with_records(self.usage.get(uri, b""), records)
        if content is not None:
            self.usage[uri] = content

    async def delete(self, variables: Mapping[str, str], uri: str) -> None:
        self._fail("delete")
        self.folders.pop(uri, None)

    async def purge(self, variables: Mapping[str, str], purge: RunFilesDeletion) -> None:
        self._fail("purge")
        self.purged.append(purge)
        self.folders = {u: m for u, m in self.folders.items() if not u.startswith(purge.root) or u in purge.keep}
