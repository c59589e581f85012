"""What the operator asks of S3, against a real one: every file of an artifact is looked at, manifests rarely."""

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, ready_facts
from rlrun.storage.store import Store
from rlrun_operator.planning.actions import RunFilesDeletion
from rlrun_operator.planning.artifact_catalog import ObservedArtifact
from rlrun_operator.storage.artifact_store import ArtifactStore, Installation, ReadyArtifact

from tests.support.seaweedfs import S3Server

FILES = {"adapter.safetensors": b"weights", "state/trainer.pt": b"optimizer"}
SIZE = sum(map(len, FILES.values()))


class Bench:
    """A run's folder, seen by the operator."""

    def __init__(self, s3: S3Server, uid: str) -> None:
        self.s3, self.store = s3, s3.store()
        self.artifacts = ArtifactStore(2, lambda: True)
        self.artifacts.installation = Installation(S3Uri(s3.bucket, f"marks/{uid}"), "this-cluster")
        self.layout = RunLayout.of(s3.bucket, "", "team", uid)

    def save(self, step: int, **files: bytes) -> None:
        uri = self.layout.checkpoint(step)
        self.store.upload_artifact({**FILES, **files}, uri, ArtifactKind.checkpoint, step=step)

    async def find(self, step: int, known: ReadyArtifact | None = None) -> ObservedArtifact:
        ready = {} if known is None else {("RLCheckpoint", step): known}
        found = await self.artifacts.list(self.s3.environment, self.layout, ready)
        return next(a for a in found if a.step == step)

    async def look(self, step: int, known: ReadyArtifact | None = None) -> tuple[bool, str | None]:
        """Whether its manifest was read, and what is wrong."""
        one = await self.find(step, known)
        return one.manifest is not None, one.problem

    async def known(self, step: int) -> ReadyArtifact:
        """The artifact as the operator knows it after it became Ready."""
        one = await self.find(step)
        return ReadyArtifact(SIZE, one.digest, one.written)


@pytest.fixture
def bench(s3_server: S3Server, request: pytest.FixtureRequest) -> Iterator[Bench]:
    found = Bench(s3_server, request.node.name)
    yield found
    found.artifacts.close()
    found.store.close()


async def test_the_manifest_of_a_complete_checkpoint_is_read_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.save(1)
    known = await bench.known(1)
    reads: list[Any] = []
    usual = Store.get_bytes
    monkeypatch.setattr(Store, "get_bytes", lambda self, uri, *rest: reads.append(uri) or usual(self, uri, *rest))
    assert await bench.look(1, known) == (False, None)
    assert reads == []
    uri = str(bench.layout.checkpoint(1))
    assert await bench.artifacts.verify(bench.s3.environment, uri) == known.digest


async def test_a_manifest_that_was_not_compared_yet_is_read(bench: Bench) -> None:
    """Of an artifact from before digests, and after a restart of the operator."""
    bench.save(1)
    digest = hashlib.sha256(bench.store.get_bytes(bench.layout.checkpoint(1) / MANIFEST)).hexdigest()
    for known in (ReadyArtifact(SIZE), ReadyArtifact(SIZE, digest)):
        found = await bench.find(1, known)
        assert (found.manifest is not None, found.digest) == (True, digest)


async def test_weights_of_the_same_size_are_another_artifact(bench: Bench) -> None:
    bench.save(1)
    known = await bench.known(1)
    await asyncio.sleep(1.1)  # S3 has the times of objects in seconds.
    bench.save(1, **{"adapter.safetensors": b"WEIGHTS"})
    found = await bench.find(1, known)
    assert found.digest != known.digest
    problem = await bench.artifacts.verify(bench.s3.environment, found.uri, known.digest)
    assert isinstance(problem, Problem)
    assert problem.reason == Reason.ARTIFACT_CHANGED
    for part in (found.uri, known.digest, found.digest):
        assert part in problem.message


@pytest.mark.parametrize("was_ready", [False, True])
async def test_a_missing_file_is_named(bench: Bench, was_ready: bool) -> None:
    bench.save(1)
    known = await bench.known(1) if was_ready else None
    bench.s3.delete(bench.layout.checkpoint(1) / "state/trainer.pt")
    read, problem = await bench.look(1, known)
    assert read
    assert problem
    assert "state/trainer.pt is missing" in problem
    told = await bench.artifacts.verify(bench.s3.environment, str(bench.layout.checkpoint(1)))
    assert told == Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message=problem)


@pytest.mark.parametrize("was_ready", [False, True])
async def test_a_file_of_another_size_is_named(bench: Bench, was_ready: bool) -> None:
    bench.save(1)
    known = await bench.known(1) if was_ready else None
    bench.store.put_bytes(bench.layout.checkpoint(1) / "adapter.safetensors", b"wei")
    _, problem = await bench.look(1, known)
    assert problem
    assert "adapter.safetensors is 3 bytes instead of 7." in problem


@pytest.mark.parametrize(
    ("others", "words"),
    [(1, "; 1 other file is also missing or has the wrong size."), (2, "; 2 other files are also missing or have")],
)
async def test_other_wrong_files_are_counted(bench: Bench, others: int, words: str) -> None:
    names = [f"{number}.safetensors" for number in range(1 + others)]
    bench.save(1, **dict.fromkeys(names, b"weights"))
    for name in names:
        bench.s3.delete(bench.layout.checkpoint(1) / name)
    _, problem = await bench.look(1)
    assert problem
    assert f"Incomplete in S3: 0.safetensors is missing{words}" in problem


async def test_a_folder_without_a_manifest_is_an_upload_unless_it_was_whole_before(bench: Bench) -> None:
    bench.save(1)
    bench.s3.delete(bench.layout.checkpoint(1) / MANIFEST)
    assert await bench.look(1) == (False, None)
    read, problem = await bench.look(1, ReadyArtifact(SIZE))
    assert not read
    assert problem
    assert "manifest.json is missing" in problem


async def test_the_operator_reads_when_an_artifact_expires(bench: Bench) -> None:
    details = {"expiresAt": "2026-02-01T02:00:00+02:00", "name": "last", "userMetadata": {"large": "x" * 1000}}
    bench.store.upload_artifact(FILES, bench.layout.checkpoint(1), ArtifactKind.checkpoint, step=1, details=details)
    found = (await bench.find(1)).manifest
    assert found
    assert ready_facts(found, "")["expiresAt"] == "2026-02-01T00:00:00Z"
    assert found.details.keys() == {"expiresAt"}


async def test_unlisted_files_in_a_checkpoint_folder_are_ignored(bench: Bench) -> None:
    bench.save(1)
    bench.store.put_bytes(bench.layout.checkpoint(1) / "note.txt", b"mine")
    assert await bench.look(1, ReadyArtifact(SIZE)) == (True, None)


async def test_an_unreadable_manifest_affects_only_its_own_folder(bench: Bench) -> None:
    bench.save(1)
    bench.save(2)
    bench.store.put_bytes(bench.layout.checkpoint(1) / MANIFEST, b"{")
    read, problem = await bench.look(1)
    assert not read
    assert problem
    assert "manifest.json is not a valid Manifest of this version" in problem
    assert await bench.look(2) == (True, None)


async def test_a_log_is_stored_by_attempt_and_pod(bench: Bench) -> None:
    uri = bench.layout.log(2, "reverse-trainer-0", "trainer", previous=True)
    await bench.artifacts.put(bench.s3.environment, str(uri), b"text")
    assert bench.store.get_bytes(uri) == b"text"
    assert bench.store.list_files(bench.layout.logs) == [("attempt-2/reverse-trainer-0/trainer.previous.log", 4)]


@pytest.mark.parametrize("kept", [(), (2,), (1, 2)], ids=str)
async def test_a_purge_leaves_the_kept_artifacts_alone(
    bench: Bench, kept: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other file stays, such as `run.json`, and no key of a folder above them is deleted."""
    deleted: list[str] = []
    usual = Store._delete
    monkeypatch.setattr(Store, "_delete", lambda self, uri, keys: deleted.extend(keys) or usual(self, uri, keys))
    for step in (1, 2, 20):
        bench.save(step)
    root = bench.layout.root
    for name in ("run.json", "checkpoints/note.txt", "logs/attempt-1/pod/trainer.log"):
        bench.store.put_bytes(root / name, b"text")
    uris = [bench.layout.checkpoint(step) for step in kept]
    before = {uri: bench.store.list_files(uri) for uri in uris}
    await bench.artifacts.purge(bench.s3.environment, RunFilesDeletion(str(root), tuple(map(str, uris))))
    assert {uri: bench.store.list_files(uri) for uri in uris} == before
    assert not [key for key in deleted for uri in uris if f"{uri.key}/".startswith(key)]
    assert len(bench.store.list_files(root)) == 3 * len(kept)
    assert bench.store.list_folders(root) == (["checkpoints"] if kept else [])
