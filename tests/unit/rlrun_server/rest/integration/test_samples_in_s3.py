"""Stored rollouts over the REST API from a real S3 server."""

import random
import time
import uuid
from typing import Any

import zstandard
from rlrun.storage.layout import S3Uri
from rlrun.storage.samples.record import SampleSplit
from rlrun_server.rest.samples.sample_reader import FRESH_SECONDS

from tests.support.rest_api import RestApi, rest_api, run_object, uid_of
from tests.support.sample_records import record
from tests.support.seaweedfs import S3Server
from tests.support.stored_samples import StoredSamples

WORDS = [f"word{number}" for number in range(3000)]
SECONDS = 20.0
"""Limit of a request on a machine that does other work. On an idle one it takes some 20 ms."""


async def found(api: RestApi, path: str, **query: Any) -> Any:
    user = api.user("ann", "get rlruns/samples in team")
    answer = await api.client.get(f"/namespaces/team/runs/first/{path}", params=query, headers=user)
    assert answer.status_code == 200, answer.text
    return answer.json()


def answer(group: int, rollout: int) -> list[dict[str, str]]:
    words = random.Random(8 * group + rollout).choices(WORDS, k=350)
    return [{"role": "assistant", "content": " ".join(words)}]


async def test_a_run_with_steps_of_512_rollouts(s3_server: S3Server) -> None:
    server = s3_server.with_bucket(f"samples-{uuid.uuid4().hex[:8]}")
    clock = [100.0]
    store = server.store()
    api = rest_api(store, lambda: clock[0], server.bucket)
    api.add(run_object("first"))
    run = StoredSamples(store, S3Uri(server.bucket, "prefix"), "team", uid_of(1))
    groups = [
        [record(f"g-{at}", f"r-{at}-{n}", example=at, reward=at / 64, completion=answer(at, n)) for n in range(8)]
        for at in range(64)
    ]
    for step in (1, 2, 10):
        run.add(step, groups)
    run.add(2, [[record("val", "val-0", environment="my exam")]], SampleSplit.val, "my exam")
    run.add(2, groups[:2], SampleSplit.filtered)
    run.put(3, zstandard.compress(b"".join(each.to_line() for group in groups[:4] for each in group)))

    steps = await found(api, "steps")
    assert [(item["step"], item["split"]) for item in steps["items"]] == [
        (1, "train"), (2, "filtered"), (2, "train"), (2, "val"), (3, "train"), (10, "train"),
    ]  # fmt: skip
    assert (await found(api, "steps/2/samples", split="val"))["groups"][0]["environment"] == "my exam"
    assert (await found(api, "steps/1/samples"))["total"] == 512, "not also those of step 10"
    assert (await found(api, "steps/3/samples"))["total"] == 32
    assert len((await found(api, "examples/reverse/7"))["points"]) == 3

    clock[0] += FRESH_SECONDS
    began = time.monotonic()
    listed = await found(api, "steps/10/samples", sort="reward", order="desc", limit=512)
    list_seconds, began = time.monotonic() - began, time.monotonic()
    group = await found(api, f"steps/10/groups/{listed['items'][0]['group']}")
    group_seconds = time.monotonic() - began
    assert len(listed["items"]) == 512
    assert [each["rollout"] for each in group["records"]] == [item["rollout"] for item in group["items"]]
    assert len(group["records"][0]["completion"][0]["content"]) > 1000
    assert list_seconds < SECONDS
    assert group_seconds < SECONDS

    # A step that is repeated after a restart replaces its object.
    run.add(10, groups[:3])
    clock[0] += FRESH_SECONDS
    assert (await found(api, "steps/10/samples"))["total"] == 24
