"""Steps with stored rollouts, and examples through the steps, over the REST API."""

from typing import Any

import pytest
import zstandard
from rlrun.storage.samples.record import SampleSplit
from rlrun_server.rest.samples import summary_reader
from rlrun_server.rest.samples.sample_models import ExampleHistory, StepList
from rlrun_server.rest.samples.summary_reader import FRESH_SECONDS, OBJECTS_SECONDS

from tests.support.rest_api import uid_of
from tests.support.sample_records import groups, record
from tests.support.stored_samples import StoredSamples
from tests.unit.rlrun_server.rest.conftest import ROOT, SampleApi


async def keys(stored: SampleApi, **query: Any) -> list[tuple[int, str, str | None]]:
    found = StepList.model_validate(await stored.found("steps", query))
    return [(item.step, item.split, item.environment) for item in found.items]


async def test_steps_with_their_summaries(stored: SampleApi) -> None:
    summary = stored.run.add(1, groups(4, 2))
    stored.run.add(1, groups(1), SampleSplit.filtered)
    stored.run.add(2, [[record(environment="my exam")]], SampleSplit.eval, "my exam")
    stored.run.add(2, groups(4, 2))
    found = StepList.model_validate(await stored.found("steps"))
    assert [(item.step, item.split, item.environment) for item in found.items] == [
        (1, "filtered", None), (1, "train", None), (2, "eval", "my exam"), (2, "train", None),
    ]  # fmt: skip
    train = found.items[1]
    assert (train.counts, train.reward, train.size_bytes) == ({"trained": 8}, summary.reward, summary.size)
    assert (found.total, found.first_step, found.last_step) == (4, 1, 2)
    assert found.splits == ["train", "eval", "filtered"]
    assert found.environments == ["my exam", "reverse"]
    assert found.is_complete
    assert not found.is_stale
    assert [what for what in stored.bucket.asked if what.startswith("get")] == ["get part-0-00000.jsonl"]


async def test_selection_order_and_pages(stored: SampleApi) -> None:
    for step in range(1, 6):
        stored.run.add(step, groups(1))
        stored.run.add(step, [[record(environment="exam")]], SampleSplit.val, "exam")
    assert await keys(stored, min_step=2, max_step=3, split="train") == [(2, "train", None), (3, "train", None)]
    assert await keys(stored, env="exam", min_step=5) == [(5, "val", "exam")]
    first = await stored.found("steps", {"order": "desc", "limit": 3})
    assert [item["step"] for item in first["items"]] == [5, 5, 4]
    rest = await keys(stored, order="desc", limit=100, cursor=first["next"])
    assert [step for step, _, _ in rest] == [4, 3, 3, 2, 2, 1, 1]
    assert await stored.problem("steps", {"cursor": first["next"]}) == (400, "CursorMismatch")


async def test_a_step_that_is_repeated_counts_once(stored: SampleApi) -> None:
    stored.run.add(1, groups(1))
    stored.run.add(1, groups(3, 2))
    (item,) = (await stored.found("steps"))["items"]
    assert item["counts"] == {"trained": 6}


async def test_objects_without_a_summary_are_listed(stored: SampleApi) -> None:
    stored.run.put(1, zstandard.compress(b"{}"))
    stored.run.put(2, b"", "val-exam")
    stored.run.add(3, groups(1))
    found = (await stored.found("steps"))["items"]
    assert found[0] == {"step": 1, "split": "train", "counts": {}, "sizeBytes": 11, "omitted": 0}
    assert found[1]["environment"] == "exam"
    assert found[2]["counts"] == {"trained": 2}


async def test_only_what_is_new_is_read(stored: SampleApi) -> None:
    stored.run.add(1, groups(1))
    await keys(stored)
    asked = len(stored.bucket.asked)
    await keys(stored)
    assert len(stored.bucket.asked) == asked, "S3 is not asked again for a moment"
    stored.now += FRESH_SECONDS
    assert len(await keys(stored)) == 1
    assert stored.bucket.asked[asked:] == ["list steps"]
    stored.run.add(2, groups(1))
    stored.now += FRESH_SECONDS
    assert len(await keys(stored)) == 2
    assert stored.bucket.asked[asked:] == ["list steps", "list steps", "get part-0-00000.jsonl"]
    stored.now += OBJECTS_SECONDS
    await keys(stored)
    assert stored.bucket.asked[-2:] == ["list steps", "list step-"]


async def test_without_s3_the_last_steps_are_shown(stored: SampleApi) -> None:
    stored.bucket.is_away = True
    answer = await stored.get("steps")
    assert (answer.status_code, answer.json()["reason"]) == (503, "S3Unreachable")
    assert int(answer.headers["retry-after"]) > 0
    stored.bucket.is_away = False
    stored.run.add(1, groups(1))
    assert not (await stored.found("steps"))["isStale"]
    stored.bucket.is_away = True
    stored.now += 10
    found = await stored.found("steps")
    assert found["isStale"]
    assert len(found["items"]) == 1
    assert (await stored.found("examples/reverse/0"))["isStale"]
    assert await stored.problem("steps/1/samples") == (503, "S3Unreachable")


async def test_files_of_summaries_have_limits(stored: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(8):
        stored.run.put_part(f"part-1-{n:05d}", b"no summary" * 100)
    monkeypatch.setattr(summary_reader, "MAX_TEXT", 5000)
    assert not (await stored.found("steps"))["isComplete"]
    assert stored.bucket.asked.count("list steps") == 1
    assert len([what for what in stored.bucket.asked if what.startswith("get")]) == 4
    await stored.found("steps")
    assert len(stored.bucket.asked) == 6, "files without a summary are not read again for each request"


async def test_a_deleted_run_is_read_by_its_uid(stored: SampleApi) -> None:
    StoredSamples(stored.bucket, ROOT, "team", uid_of(7)).add(3, groups())
    assert (await stored.found("steps", run=uid_of(7)))["lastStep"] == 3
    assert await stored.problem("steps", run=uid_of(8)) == (404, "ObjectNotFound")
    assert await stored.problem("steps", run="second") == (404, "ObjectNotFound")
    assert (await stored.found("steps"))["items"] == [], "a run that exists may have none yet"


async def test_an_example_through_the_steps(stored: SampleApi) -> None:
    for step in (1, 2, 3):
        stored.run.add(step, [[record("a", "r", example=7, reward=step / 10)], [record("b", "s", example=8)]])
    stored.run.add(2, [[record("c", "r", example=7, environment="exam", reward=0.9)]], SampleSplit.eval, "exam")
    stored.run.add(2, [[record("d", "r", example=7, reward=0.8)]], SampleSplit.filtered)
    found = ExampleHistory.model_validate(await stored.found("examples/reverse/7"))
    assert [(p.step, p.split, p.mean) for p in found.points] == [
        (1, "train", 0.1), (2, "filtered", 0.8), (2, "train", 0.2), (3, "train", 0.3),
    ]  # fmt: skip
    assert found.is_complete
    only = await stored.found("examples/reverse/7", {"split": "filtered"})
    assert [point["step"] for point in only["points"]] == [2]
    assert (await stored.found("examples/nothing/7"))["points"] == []
    slashed = await stored.found("examples/acme%2Fnothing/7")
    assert (slashed["environment"], slashed["points"]) == ("acme/nothing", [])


async def test_folders_of_the_platform_are_no_namespaces(stored: SampleApi) -> None:
    StoredSamples(stored.bucket, ROOT, "models", uid_of(1)).add(3, groups())
    user = stored.rest.user("ann", "get rlruns/samples in models", "list rlruns in models")
    for path in ("steps", "steps/3/samples"):
        answer = await stored.rest.client.get(f"/namespaces/models/runs/{uid_of(1)}/{path}", headers=user)
        assert answer.status_code == 404


@pytest.mark.parametrize("query", [{"limit": 2001}, {"min_step": -1}, {"split": "x"}, {"order": "up"}, {"steps": 1}])
async def test_wrong_parameters_are_named(stored: SampleApi, query: dict[str, Any]) -> None:
    answer = await stored.get("steps", query)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"].startswith(f"query/{next(iter(query))}")
