"""Command `compare`, with the real REST API."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from rlrun_cli.remote.context import CliContext

from tests.support.command_line import Answer, call
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_s3 import InMemoryStore
from tests.support.rest_api import BUCKET, rest_api, run_object
from tests.unit.rlrun_cli.conftest import TEAM, remote_cluster


def compare(*words: object) -> Answer:
    """Compare runs of a REST API, two of which differ in their number of steps."""

    def send(method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        async def request() -> Any:
            api = rest_api(InMemoryStore(BUCKET))
            api.add(run_object("first"), run_object("second", number=2, maxSteps=80))
            headers = api.user("ann", f"get rlruns in {TEAM}", f"get rlruns/metrics in {TEAM}")
            answer = await api.client.request(method, path.removeprefix("/rlrun/v1"), headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

        return asyncio.run(request())

    given = CliContext(connect=lambda *_: remote_cluster(FakeCluster()), server=lambda *_: send)
    return call("compare", *words, context=given)


def test_fields_that_differ_have_a_row() -> None:
    answer = compare("first", f"{TEAM}/second")
    assert answer.code == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[0] == ["FIELD", "first", f"{TEAM}/second"]
    assert [line[0] for line in lines[1:4]] == ["phase", "step", "reward"]
    (row,) = [line for line in lines if line[0] == "maxSteps"]
    assert row[2] == "80"
    assert row[1] != "80"


def test_documents() -> None:
    assert "maxSteps" in [d["path"] for d in json.loads(compare("first", "second", "-o", "json").out)["differences"]]
    assert "maxSteps" in compare("first", "second", "-o", "name").out.split()


@pytest.mark.parametrize("count", [1, 21])
def test_too_few_or_too_many_runs_are_refused(count: int) -> None:
    answer = compare(*(f"run-{n}" for n in range(count)))
    assert answer.code == 2
    assert "specify 2 to 20 runs" in answer.err
