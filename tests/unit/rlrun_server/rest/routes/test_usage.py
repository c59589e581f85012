"""Time for which runs have held GPUs."""

from datetime import UTC, datetime
from typing import Any

import pytest
from rlrun_server.rest.objects.summaries import RunSummary, summarize_run
from rlrun_server.rest.routes.usage import UsageGroup, usage_of

from tests.support.rest_api import RestApi, rest_api, run_object

START = "2026-01-01T00:00:00Z"
LATER = datetime(2026, 1, 1, 0, 1, 40, tzinfo=UTC)


def run(name: str, number: int, namespace: str = "team", model: str = "m", **status: Any) -> RunSummary:
    obj = run_object(name, namespace, number, model=model)
    obj["status"] |= status
    return summarize_run(obj)


RUNS = [
    run("ended", 1, pastActiveSeconds=50, pastGpuSeconds=200, resolved={"gpus": 4}),
    run("active", 2, pastActiveSeconds=10, pastGpuSeconds=10, attemptStartTime=START, resolved={"gpus": 3}),
    run("waits", 3, namespace="other", model="n"),
]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (UsageGroup.run, [("team", "active", "m", 1, 3, 110, 310), ("team", "ended", "m", 1, 0, 50, 200),
                          ("other", "waits", "n", 1, 0, 0, 0)]),
        (UsageGroup.namespace, [("team", None, None, 2, 3, 160, 510), ("other", None, None, 1, 0, 0, 0)]),
        (UsageGroup.model, [(None, None, "m", 2, 3, 160, 510), (None, None, "n", 1, 0, 0, 0)]),
    ],
)  # fmt: skip
def test_groups(by: UsageGroup, expected: list[tuple[Any, ...]]) -> None:
    rows, total = usage_of(RUNS, by, LATER)
    assert [(r.namespace, r.run, r.model, r.runs, r.gpus, r.active_seconds, r.gpu_seconds) for r in rows] == expected
    assert (total.runs, total.gpus, total.active_seconds, total.gpu_seconds) == (3, 3, 160, 510)


def test_a_clock_that_is_behind_counts_nothing_back() -> None:
    rows, _ = usage_of([RUNS[1]], UsageGroup.run, datetime(2025, 1, 1, tzinfo=UTC))
    assert (rows[0].active_seconds, rows[0].gpu_seconds) == (10, 10)


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    ended = run_object("ended", number=1)
    ended["status"] |= {"pastActiveSeconds": 50, "pastGpuSeconds": 200}
    found.add(ended, run_object("other", "secret", number=4))
    return found


@pytest.mark.parametrize("path", ["/namespaces/team/usage", "/usage"])
async def test_usage_is_that_of_namespaces_the_user_sees(api: RestApi, path: str) -> None:
    answer = await api.client.get(path, headers=api.user("ann", "list rlruns in team"))
    assert answer.status_code == 200
    assert [(row["run"], row["gpuSeconds"]) for row in answer.json()["rows"]] == [("ended", 200)]
    since = await api.client.get(path, params={"since": "2027-01-01"}, headers=api.user("ann", "list rlruns in team"))
    assert (since.json()["rows"], since.json()["total"]["runs"]) == ([], 0)
    assert (await api.client.get("/namespaces/secret/usage", headers=api.user("ann"))).status_code == 404
