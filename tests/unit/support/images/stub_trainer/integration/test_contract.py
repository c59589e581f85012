"""The stub answers as the contract says. tests/image compares it with the real trainer."""

import uuid
from pathlib import Path

from rlrun.storage.store import Store
from rlrun_trainer.runtime.settings import TrainerSettings

from tests.support.contracts.trainer_contract import differences, observe, shape_of
from tests.support.images.stub_trainer.backend import StubBackend
from tests.support.seaweedfs import S3Server
from tests.support.trainer_client import serving


async def test_the_stub_keeps_the_contract(model_dir: Path, s3_server: S3Server, store: Store) -> None:
    settings = TrainerSettings(model_dir=model_dir, slots=2)
    async with serving(StubBackend(settings), store, settings) as client:
        observed = await observe(client, store, f"s3://{s3_server.bucket}/{uuid.uuid4().hex}")
    assert set(observed["first step"]["metrics"]) >= {"loss/mean", "entropy/all/mean", "mismatch_kl/all/mean"}


def test_a_difference_is_named() -> None:
    ours = {"step": shape_of({"metrics": {"loss/mean": 1.0, "new": 2}, "policy": [{"a": 1}, {"a": 2}]})}
    theirs = {"step": shape_of({"metrics": {"loss/mean": 3}, "policy": [{"a": "x"}]})}
    assert differences(ours, theirs) == [
        "step / metrics / new: number and None",
        "step / policy: [{'a': 'number'}] and [{'a': 'str'}]",
    ]
    assert differences(ours, ours) == []
