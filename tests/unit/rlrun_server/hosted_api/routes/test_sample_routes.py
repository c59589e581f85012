"""Rollouts, progress and distributions for hosted clients."""

import pytest
from rlrun.storage.layout import S3Uri
from rlrun_server.hosted_api.objects import sample_objects

from tests.support.hosted_api import HostedApi, hosted_api
from tests.support.rest_api import BUCKET, run_object, uid_of
from tests.support.sample_records import groups, record
from tests.support.stored_samples import StoredSamples

PLACE = "/rft/runs/first"


@pytest.fixture
async def api() -> HostedApi:
    found = hosted_api()
    found.rest.add(run_object("first"))
    stored = StoredSamples(found.store, S3Uri(BUCKET, "prefix"), "team", uid_of(1))
    stored.add(3, groups(3, 4))
    stored.add(7, [[record("g", "r", step=7, completion=[{"role": "assistant", "content": "[/INST]"}])]])
    await found.key()
    return found


async def test_pages_of_rollouts_with_texts(api: HostedApi) -> None:
    found = (await api.client.get(f"{PLACE}/samples", params={"step": 3, "page": 2, "limit": 5})).json()
    samples = found.pop("samples")
    assert found == {"run_id": "first", "total": 12, "page": 2, "limit": 5, "total_pages": 3}
    assert [sample["sample_id"] for sample in samples] == ["g1-r1", "g1-r2", "g1-r3", "g2-r0", "g2-r1"]
    first = samples[0]
    assert (first["example_id"], first["environment"], first["reward"], first["group"]) == (1, "reverse", 0.25, "g1")
    assert first["completion"] == [{"role": "assistant", "content": "olleh"}]
    assert first["prompt"] == [{"role": "user", "content": "reverse: hello"}]
    assert first["rewards"]["overlap"] == {"value": 0.5, "weight": 0.8}
    for page in (4, 9, 1_000_000):
        beyond = (await api.client.get(f"{PLACE}/samples", params={"step": 3, "page": page, "limit": 5})).json()
        assert (beyond["samples"], beyond["total"], beyond["page"]) == ([], 12, page)


async def test_answers_are_bounded(api: HostedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_objects, "MAX_ANSWER", 2500)
    samples = (await api.client.get(f"{PLACE}/samples", params={"step": 3})).json()["samples"]
    assert len(samples) == 12
    whole = [sample for sample in samples if "completion" in sample]
    assert 0 < len(whole) < 12
    assert all(sample.get("texts_left_out") for sample in samples if sample not in whole)


async def test_progress(api: HostedApi) -> None:
    found = (await api.client.get(f"{PLACE}/progress")).json()
    assert found == {
        "latestStep": 1, "stepsWithSamples": [3, 7], "stepsWithDistributions": [3, 7], "lastUpdatedAt": None,
    }  # fmt: skip


async def test_distributions(api: HostedApi) -> None:
    newest = (await api.client.get(f"{PLACE}/distributions")).json()
    assert (newest["step"], sum(each["count"] for each in newest["bins"])) == (7, 1)
    found = (await api.client.get(f"{PLACE}/distributions", params={"step": 3, "type": "rewards"})).json()
    assert sum(each["count"] for each in found["bins"]) == 12
    assert all(set(each) == {"min", "max", "count"} for each in found["bins"])
    api.rest.add(run_object("second", number=2))
    assert (await api.client.get("/rft/runs/second/distributions")).json() == {"bins": [], "step": None}
    assert (await api.client.get("/rft/runs/second/progress")).json()["stepsWithSamples"] == []
    assert (await api.client.get(f"{PLACE}/samples", params={"step": 99})).status_code in (200, 404)
