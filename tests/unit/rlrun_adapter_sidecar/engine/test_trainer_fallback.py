"""Policies come from the trainer while S3 is away, held to the same digests, and S3 is not asked for each of them."""

import asyncio
import threading

import pytest
from rlrun.storage.layout import ADAPTER_WEIGHTS, MANIFEST
from rlrun.storage.manifest import FileEntry
from rlrun.storage.store import AccessDenied, Unreachable
from rlrun_adapter_sidecar.engine import trainer_fallback as fallback_module

from tests.support.fake_policy_server import manifest_of


async def test_a_policy_in_s3_is_downloaded_without_asking_the_trainer(sidecar):
    policy = sidecar.store.publish_policy(1, b"w")
    assert (await sidecar.put(sidecar.trainer.load_of(policy)))[0] == 200
    assert (sidecar.store.reads, sidecar.store.downloads, sidecar.trainer.asked) == (1, 1, [])


async def test_a_policy_missing_from_s3_is_downloaded_from_the_trainer(sidecar):
    policy = sidecar.trainer.publish(4, b"weights")
    status, body = await sidecar.put(policy)
    assert (status, body["adapters"]) == (200, [policy.name])
    assert (sidecar.folder / policy.name / "adapter_model.safetensors").read_bytes() == b"weights"
    assert sidecar.engine.loaded == {policy.name: str(sidecar.folder / policy.name)}
    assert [path.name for path in sidecar.folder.iterdir()] == [policy.name]
    # It is on disk now like any other.
    sidecar.engine.loaded.clear()
    asked = list(sidecar.trainer.asked)
    assert (await sidecar.put(policy))[0] == 200
    assert sidecar.trainer.asked == asked


@pytest.mark.parametrize("pause", [3600.0, 0.0], ids=["in the pause", "after it"])
async def test_s3_gets_no_second_request_while_one_is_unanswered(sidecar, monkeypatch, pause):
    monkeypatch.setattr(fallback_module, "MANIFEST_SECONDS", 0.2)
    fallback = sidecar.adapters._files._fallback
    fallback._pause.first = pause
    sidecar.store.silent = threading.Event()
    async with asyncio.timeout(60):
        for version in range(9):
            assert (await sidecar.put(sidecar.trainer.publish(version, b"%d" % version)))[0] == 200
    # Neither does a thread wait for every question, nor does a policy wait for every answer.
    assert sidecar.store.reads == 1
    unanswered = fallback._pending_request
    sidecar.store.silent.set()
    await asyncio.wait({unanswered})
    # The late answer is an answer.
    policy = sidecar.store.publish_policy(9, b"9")
    assert (await sidecar.put(sidecar.trainer.load_of(policy)))[0] == 200
    assert sidecar.store.downloads == 1


async def test_s3_is_used_again_after_an_outage(sidecar):
    sidecar.store.fail = Unreachable("silent")
    sidecar.adapters._files._fallback._pause.first = 0.0
    assert (await sidecar.put(sidecar.trainer.publish(1, b"1")))[0] == 200
    sidecar.store.fail = None
    policy = sidecar.store.publish_policy(2, b"2")
    assert (await sidecar.put(sidecar.trainer.load_of(policy)))[0] == 200
    assert sidecar.store.downloads == 1


async def test_an_s3_refusal_is_reported_without_trainer_fallback(sidecar):
    sidecar.store.fail = AccessDenied("key refused")
    status, problem = await sidecar.put(sidecar.trainer.publish(1, b"1"))
    assert (status, problem["reason"]) == (503, "AdapterDownloadFailed")
    assert "key refused" in problem["message"]
    assert sidecar.trainer.asked == []


@pytest.mark.parametrize("harm", ["tampered", "other weights", "outside", "gone"])
async def test_only_files_that_match_the_requested_policy_are_loaded(sidecar, harm):
    sidecar.store.fail = Unreachable("silent")
    policy = sidecar.trainer.publish(1, b"weights")
    if harm == "tampered":
        sidecar.trainer.tampered = True
    elif harm == "other weights":
        sidecar.trainer.manifest = manifest_of(b"others")
    elif harm == "outside":
        right = manifest_of(b"weights")
        right.files.append(FileEntry(name="../../outside", size=7, sha256=right.files[0].sha256))
        sidecar.trainer.manifest = right
    else:
        sidecar.trainer.policies.clear()
    status, problem = await sidecar.put(policy)
    assert (status, problem["reason"]) == (503, "AdapterDownloadFailed")
    assert "silent" in problem["message"]
    assert "the fallback download from the trainer failed too" in problem["message"]
    assert sidecar.engine.loads == 0
    assert list(sidecar.folder.iterdir()) == []
    assert not (sidecar.folder.parent / "outside").exists()


@pytest.mark.parametrize("file", [MANIFEST, ADAPTER_WEIGHTS])
async def test_a_trainer_cannot_lead_a_download_elsewhere(sidecar, file):
    sidecar.store.fail = Unreachable("silent")
    policy = sidecar.trainer.publish(1, b"weights")
    sidecar.trainer.redirected = file
    status, problem = await sidecar.put(policy)
    assert (status, problem["reason"]) == (503, "AdapterDownloadFailed")
    assert sidecar.trainer.asked[-1] == file
    assert sidecar.engine.loads == 0
