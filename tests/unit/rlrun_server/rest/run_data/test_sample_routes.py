"""Rollouts of a step over the REST API."""

import json
from typing import Any

import pytest
import zstandard
from rlrun.protocol.problem import Problem
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import SampleSplit, SampleStatus
from rlrun_server.rest.samples import sample_views
from rlrun_server.rest.samples.sample_models import SampleDetail, SampleGroupDetail, SampleList

from tests.support.rest_api import uid_of
from tests.support.sample_records import groups, record, with_index
from tests.support.stored_samples import StoredSamples
from tests.unit.rlrun_server.rest.conftest import ROOT, SampleApi


async def rows(stored: SampleApi, **query: Any) -> list[str]:
    return [item["rollout"] for item in (await stored.found("steps/3/samples", query))["items"]]


async def test_a_list_takes_one_listing_and_one_range(stored: SampleApi) -> None:
    stored.run.add(3, groups(3, 2))
    found = SampleList.model_validate(await stored.found("steps/3/samples"))
    assert stored.bucket.asked == ["list step-000003.", "get step-000003.jsonl.zst"]
    assert [item.rollout for item in found.items] == ["g0-r0", "g0-r1", "g1-r0", "g1-r1", "g2-r0", "g2-r1"]
    first = found.items[0]
    assert (first.group, first.status, first.reward, first.text) == ("g0", SampleStatus.trained, 0.0, "olleh")
    assert first.rewards == {"overlap": 0.5, "format": 1.0}
    assert (first.prompt_tokens, first.completion_tokens, first.turns) == (11, 9, 1)
    assert [(g.group, g.environment, g.example, g.mean, g.rollouts) for g in found.groups] == [
        (f"g{n}", "reverse", n, 0.25, 2) for n in range(3)
    ]
    assert (found.total, found.functions, found.problems) == (6, ["overlap", "format"], [])
    assert (found.uid, found.step, found.split) == (uid_of(1), 3, SampleSplit.train)


async def test_rollouts_of_agents_name_them(stored: SampleApi) -> None:
    stored.run.add(3, [[record("g0", "r0", agent="asker"), record("g0", "r1", agent="guesser"), record("g0", "r2")]])
    found = SampleList.model_validate(await stored.found("steps/3/samples"))
    assert [item.agent for item in found.items] == ["asker", "guesser", None]
    group = SampleGroupDetail.model_validate(await stored.found("steps/3/groups/g0"))
    assert [item.agent for item in group.items] == ["asker", "guesser", None]


async def test_filters(stored: SampleApi) -> None:
    failed = record("g9", "g9-r0", status=SampleStatus.errored, reward=None, cause="Timeout", example=9,
                    error=Problem(reason="Timeout", message="the tool did not answer"))  # fmt: skip
    other = record("h0", "h0-r0", environment="other", reward=1.0, example=0)
    stored.run.add(3, [*groups(2, 4), [failed], [other]])
    assert await rows(stored, env="other") == ["h0-r0"]
    assert await rows(stored, status="errored") == ["g9-r0"]
    assert await rows(stored, min_reward=0.5, max_reward=0.6) == ["g0-r2", "g1-r2"]
    assert await rows(stored, group="g1", max_reward=0) == ["g1-r0"]
    assert await rows(stored, example=0, env="reverse") == ["g0-r0", "g0-r1", "g0-r2", "g0-r3"]
    assert await rows(stored, q="TOOL") == ["g9-r0"]
    assert await rows(stored, q="g1-R3") == ["g1-r3"]
    assert await rows(stored, q="nothing") == []


async def test_order_and_pages(stored: SampleApi) -> None:
    stored.run.add(3, [*groups(2, 4), [record("x", "x-r0", reward=None)]])
    first = await stored.found("steps/3/samples", {"sort": "reward", "order": "desc", "limit": 3})
    assert [item.get("reward") for item in first["items"]] == [0.75, 0.75, 0.5]
    assert (first["total"], len(first["groups"])) == (9, 2)
    rest = await stored.found(
        "steps/3/samples", {"sort": "reward", "order": "desc", "limit": 9, "cursor": first["next"]}
    )
    assert [item.get("reward") for item in rest["items"]] == [0.5, 0.25, 0.25, 0.0, 0.0, None]
    assert "next" not in rest
    other = {"sort": "reward", "order": "asc", "cursor": first["next"]}
    assert await stored.problem("steps/3/samples", other) == (400, "CursorMismatch")
    stored.run.add(4, groups(2, 4))
    same = {"sort": "reward", "order": "desc", "cursor": first["next"]}
    assert await stored.problem("steps/4/samples", same) == (400, "CursorMismatch")


async def test_a_group_has_its_siblings_with_all_texts(stored: SampleApi) -> None:
    stored.run.add(3, [*groups(40, 8), [record("long", "long-r0", answer="x" * 100_000)]])
    await stored.found("steps/3/samples")
    stored.bucket.asked.clear()
    found = SampleGroupDetail.model_validate(await stored.found("steps/3/groups/g7"))
    assert found.problem is None
    assert found.records == groups(40, 8)[7]
    assert [item.rollout for item in found.items] == [f"g7-r{n}" for n in range(8)]
    assert found.group.mean == 0.4375
    assert stored.bucket.asked in ([], ["get step-000003.jsonl.zst"]), "list and index are known for a moment"


async def test_one_rollout(stored: SampleApi) -> None:
    stored.run.add(3, groups(3, 4))
    found = SampleDetail.model_validate(await stored.found("steps/3/samples/g1-r2"))
    assert found.record == groups(3, 4)[1][2]
    assert (found.item.rollout, found.group.group, found.problem) == ("g1-r2", "g1", None)


async def test_what_is_not_there_is_not_found(stored: SampleApi) -> None:
    stored.run.add(3, groups())
    for path in ("steps/4/samples", "steps/3/groups/g9", "steps/3/samples/g9", "steps/30/histogram"):
        assert await stored.problem(path) == (404, "ObjectNotFound"), path
    assert await stored.problem("steps/3/samples", {"split": "val"}) == (404, "ObjectNotFound")
    assert await stored.problem("steps/3/samples", run="second") == (404, "ObjectNotFound")
    assert await stored.problem("steps/3/samples", run=uid_of(9)) == (404, "ObjectNotFound")


async def test_a_deleted_run_is_read_by_its_uid(stored: SampleApi) -> None:
    StoredSamples(stored.bucket, ROOT, "team", uid_of(7)).add(3, groups())
    assert (await stored.found("steps/3/samples", run=uid_of(7)))["total"] == 6


async def test_splits_and_environments_of_a_step_are_apart(stored: SampleApi) -> None:
    stored.run.add(3, groups(1))
    stored.run.add(3, groups(2), SampleSplit.filtered)
    stored.run.add(3, [[record("a", "a0", environment="first exam")]], SampleSplit.eval, "first exam")
    stored.run.add(3, [[record("b", "b0", environment="exam")]], SampleSplit.eval, "exam")
    stored.run.add(30, groups(3))
    assert len(await rows(stored)) == 2
    assert len(await rows(stored, split="filtered")) == 4
    assert sorted(await rows(stored, split="eval")) == ["a0", "b0"]
    assert await rows(stored, split="eval", env="exam") == ["b0"]
    assert (await stored.found("steps/3/samples/b0", {"split": "eval"}))["record"]["environment"] == "exam"


async def test_objects_without_an_index_are_listed_as_damaged(stored: SampleApi) -> None:
    lines = b"".join(record("", f"r{n}").to_line() for n in range(3))
    stored.run.put(3, zstandard.compress(lines))
    found = await stored.found("steps/3/samples")
    assert "ends without an index" in found["problems"][0]
    assert [item["rollout"] for item in found["items"]] == ["r0", "r1", "r2"]
    (group,) = found["groups"]
    assert group["group"].startswith("~"), "a group without an id has one for paths"
    detail = await stored.found(f"steps/3/groups/{group['group']}")
    assert [r["completion"] for r in detail["records"]] == [[{"role": "assistant", "content": "olleh"}]] * 3
    assert (await stored.found("steps/3/samples/r1"))["record"]["rollout"] == "r1"


async def test_a_damaged_group_says_so_and_the_others_are_shown(stored: SampleApi) -> None:
    encoded = encode_samples(3, SampleSplit.train, groups())
    damaged = encoded.index.groups[1]
    data = bytearray(encoded.data)
    data[damaged.offset + 4 : damaged.offset + damaged.size] = bytes(damaged.size - 4)
    stored.run.put(3, bytes(data))
    assert (await stored.found("steps/3/samples"))["total"] == 6
    found = await stored.found("steps/3/groups/g1")
    assert found["records"] == []
    assert "cannot be read" in found["problem"]
    assert len(found["items"]) == 2
    one = await stored.found("steps/3/samples/g1-r0")
    assert "cannot be read" in one["problem"]
    assert "record" not in one
    assert len((await stored.found("steps/3/groups/g0"))["records"]) == 2


async def test_a_damaged_index_is_named(stored: SampleApi) -> None:
    data = encode_samples(3, SampleSplit.train, groups()).data
    stored.run.put(3, with_index(data, lambda index: index[:20] + bytes(len(index) - 20)))
    found = await stored.found("steps/3/samples")
    assert found["total"] == 6
    assert "step-000003.jsonl.zst is damaged" in found["problems"][0]
    assert len(found["problems"][0]) < 600


async def test_a_damaged_object_leaves_those_of_other_environments(stored: SampleApi) -> None:
    stored.run.put(3, b"nothing that is zstd", "eval-a")
    stored.run.add(3, [[record("b", "b0")]], SampleSplit.eval, "b")
    found = await stored.found("steps/3/samples", {"split": "eval"})
    assert [item["rollout"] for item in found["items"]] == ["b0"]
    assert len(found["problems"]) == 1


async def test_ids_that_no_path_may_have(stored: SampleApi) -> None:
    odd = ["../../x", "", "a/b", "é", "~1", "twice", "twice", "..", "<b>", "fine"]
    stored.run.add(
        3, [[record("g/1", id, answer=str(n)) for n, id in enumerate(odd)], [record("g/1", "z", answer="z")]]
    )
    found = await stored.found("steps/3/samples")
    ids = [item["rollout"] for item in found["items"]]
    assert len(set(ids)) == len(odd) + 1
    assert [id for id in ids if not id.startswith("~")] == ["fine", "z"]
    for n, id in enumerate(ids[:-1]):
        detail = await stored.found(f"steps/3/samples/{id}")
        assert (detail["record"]["rollout"], detail["record"]["answer"]) == (odd[n], str(n))
    assert len({group["group"] for group in found["groups"]}) == 2
    assert len((await stored.found(f"steps/3/groups/{found['groups'][1]['group']}"))["records"]) == 1


async def test_long_texts_of_a_group_are_read_one_by_one(stored: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.run.add(3, groups(1, 8))
    monkeypatch.setattr(sample_views, "RECORDS_BYTES", 2000)
    found = await stored.found("steps/3/groups/g0")
    assert 0 < len(found["records"]) < 8
    assert len(found["items"]) == 8
    assert "one by one" in found["problem"]
    assert (await stored.found("steps/3/samples/g0-r7"))["record"]["rollout"] == "g0-r7"


async def test_records_that_json_cannot_have(stored: SampleApi) -> None:
    line = '{"v":2,"step":3,"split":"train","group":"g","rollout":"r","environment":"e","example":1,"status":"trained",'
    deep = line + '"info":' + "[" * 800 + "]" * 800 + "}"
    stored.run.put(3, zstandard.compress(deep.encode()))
    assert "nested" in (await stored.found("steps/3/groups/g"))["problem"]
    odd = line + '"info":{"a":NaN,"b":"\\ud800","c":1e999},"completion":[{"role":"user","content":"\\u0000</script>"}]}'
    stored.run.put(3, zstandard.compress(odd.encode()))
    stored.now += 10
    answer = await stored.get("steps/3/groups/g")
    (found,) = json.loads(answer.text, parse_constant=pytest.fail)["records"]
    assert found["info"] == {"a": None, "b": "?", "c": None}
    assert found["completion"][0]["content"] == "\0</script>"


async def test_histogram(stored: SampleApi) -> None:
    rewards = [0.0, 0.1, 0.5, 0.5, 1.0]
    samples = [record("g", f"r{n}", reward=reward) for n, reward in enumerate(rewards)]
    samples.append(record("g", "bad", reward=5.0, status=SampleStatus.errored))
    stored.run.add(3, [samples, [record("h", "other", environment="other", reward=9.0)]])
    found = await stored.found("steps/3/histogram", {"bins": 2, "env": "reverse"})
    assert [(b["min"], b["max"], b["count"]) for b in found["bins"]] == [(0.0, 0.5, 2), (0.5, 1.0, 3)]
    assert (found["count"], found["mean"]) == (5, pytest.approx(0.42))
    assert (await stored.found("steps/3/histogram", {"env": "none"}))["bins"] == []


@pytest.mark.parametrize(
    ("path", "query", "pointer"),
    [
        ("steps/3/samples", {"limit": 513}, "query/limit"),
        ("steps/3/samples", {"split": "test"}, "query/split"),
        ("steps/3/samples", {"min_reward": "nan"}, "query/min_reward"),
        ("steps/3/samples", {"max_reward": "inf"}, "query/max_reward"),
        ("steps/3/samples", {"unknown": 1}, "query/unknown"),
        ("steps/x/samples", {}, "path/step"),
        ("steps/-1/samples", {}, "path/step"),
        ("steps/99999999999/samples", {}, "path/step"),
        ("steps/3/groups/%3Cb%3E", {}, "path/group"),
        ("steps/3/histogram", {"bins": 101}, "query/bins"),
    ],
)
async def test_wrong_parameters_are_named(stored: SampleApi, path: str, query: dict[str, Any], pointer: str) -> None:
    answer = await stored.get(path, query)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == pointer
