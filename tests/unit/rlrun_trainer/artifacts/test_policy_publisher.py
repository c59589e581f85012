"""A policy is published under the digest of its weights, in one file or several."""

import pytest
from rlrun.protocol.policy import PolicyKind
from rlrun.storage.layout import MODEL_WEIGHTS, S3Uri
from rlrun.storage.manifest import Manifest, weights_digest
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
