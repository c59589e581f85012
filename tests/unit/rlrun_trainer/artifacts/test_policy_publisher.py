"""A policy is published under the digest of its weights, in one file or several."""

import asyncio
import threading
from typing import Any

import pytest
from rlrun.protocol.policy import PolicyKind
from rlrun.storage.layout import ADAPTER_WEIGHTS, MODEL_WEIGHTS, S3Uri
from rlrun.storage.manifest import Manifest, weights_digest
from rlrun.storage.store import AccessDenied, Unreachable
from rlrun_trainer.artifacts import policy_publisher
from rlrun_trainer.artifacts.artifact_files import TempFolder
from rlrun_trainer.artifacts.policy_publisher import Publisher

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore

RUN_URI = "s3://bucket/runs/team/uid-1"
DIVIDED = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


async def published(store: InMemoryStore, files: dict[str, bytes]) -> Manifest:
    folder = TempFolder()
    for name, data in files.items():
        (folder.path / name).write_bytes(data)
    publisher = Publisher(store, trainer_requests.spec(RUN_URI, kind=PolicyKind.weights), 3, [])
    ref = await publisher.publish(7, folder)
    manifest = store.read_manifest(S3Uri.parse(ref.uri))
    assert manifest is not None
    assert ref.uri == f"{RUN_URI}/policy/v000007-{ref.digest[:8]}"
    assert ref.digest == weights_digest(manifest.files, ref.kind)
    assert {name: publisher.file(ref.name, name) for name in files} == {name: folder.path / name for name in files}
    await publisher.close()
    return manifest


@pytest.mark.parametrize("weights", [(MODEL_WEIGHTS,), DIVIDED])
async def test_every_file_of_the_weights_is_in_s3_and_in_the_name(weights: tuple[str, ...]) -> None:
    files = {name: name.encode() for name in weights} | {"config.json": b"{}"}
    store = InMemoryStore()
    first = await published(store, files)
    assert {file.name for file in first.files} == set(files)
    digests = {weights_digest(first.files, PolicyKind.weights)}
    again = await published(store, files)
    assert weights_digest(again.files, PolicyKind.weights) in digests
    for name in weights:
        other = await published(store, files | {name: b"other"})
        digests.add(weights_digest(other.files, PolicyKind.weights))
    assert len(digests) == 1 + len(weights)


class FailingStore(InMemoryStore):
    """Store whose next uploads fail."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def upload(self, *arguments: Any, **options: Any) -> Manifest:
        if self.errors:
            raise self.errors.pop(0)
        return super().upload(*arguments, **options)


def adapter(weights: str) -> dict[str, bytes]:
    return {ADAPTER_WEIGHTS: weights.encode(), "adapter_config.json": b"{}"}


async def test_a_version_that_is_only_in_s3_is_complete_there_and_older_ones_are_deleted() -> None:
    store = InMemoryStore()
    publisher = Publisher(store, trainer_requests.spec(RUN_URI), 2, ["v000001-00000000"])
    refs = [await publisher.store(number, adapter(str(number))) for number in (4, 7, 9)]
    await asyncio.gather(*filter(None, [publisher._pruning]))
    assert store.list_folders(S3Uri.parse(f"{RUN_URI}/policy")) == [ref.uri.rsplit("/")[-1] for ref in refs[1:]]
    assert all(store.is_complete(S3Uri.parse(ref.uri)) for ref in refs[1:])
    assert publisher.file(refs[-1].name, ADAPTER_WEIGHTS) is None
    await publisher.close()


class SlowDeletion(InMemoryStore):
    """Store that deletes nothing until `may_delete` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_delete = threading.Event()

    def delete_prefix(self, *arguments: Any, **options: Any) -> int:
        self.may_delete.wait(30)
        return super().delete_prefix(*arguments, **options)


async def test_a_version_that_is_stored_during_a_deletion_is_counted_too() -> None:
    store = SlowDeletion()
    publisher = Publisher(store, trainer_requests.spec(RUN_URI), 1, [])
    refs = [await publisher.store(number, adapter(str(number))) for number in (1, 2, 3)]
    store.may_delete.set()
    await asyncio.gather(*filter(None, [publisher._pruning]))
    assert store.list_folders(S3Uri.parse(f"{RUN_URI}/policy")) == [refs[-1].uri.rsplit("/")[-1]]
    await publisher.close()


@pytest.mark.parametrize("publish", [Publisher.store, Publisher.publish])
async def test_a_version_that_is_published_again_during_its_deletion_is_complete_afterwards(publish: Any) -> None:
    store = SlowDeletion()
    publisher = Publisher(store, trainer_requests.spec(RUN_URI), 1, [])
    for number in (1, 2):
        await publisher.store(number, adapter(str(number)))
    again = asyncio.create_task(publish(publisher, 1, adapter("1")))
    await asyncio.wait({again}, timeout=0.2)
    store.may_delete.set()
    ref = await again
    await asyncio.gather(*filter(None, [publisher._pruning]))
    assert store.is_complete(S3Uri.parse(ref.uri))
    assert store.list_folders(S3Uri.parse(f"{RUN_URI}/policy")) == [ref.uri.rsplit("/")[-1]]
    await publisher.close()


async def test_an_upload_is_retried_while_s3_is_unreachable_and_a_refusal_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_publisher, "FIRST_WAIT", 0.0)
    store = FailingStore(Unreachable("no route"), Unreachable("no route"))
    publisher = Publisher(store, trainer_requests.spec(RUN_URI), 2, [])
    assert store.is_complete(S3Uri.parse((await publisher.store(1, adapter("a"))).uri))
    assert publisher.problem is None
    store.errors.append(AccessDenied("no right"))
    with pytest.raises(AccessDenied):
        await publisher.store(2, adapter("b"))
    assert publisher.problem is not None
    assert "no right" in publisher.problem.message
    await publisher.close()
