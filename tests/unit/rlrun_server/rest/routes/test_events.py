"""Events as the REST API shows them."""

from typing import Any

import pytest
from rlrun_server.rest.routes.events import event_of

from tests.support.rest_api import rest_api, run_object, uid_of


@pytest.mark.parametrize(
    ("event", "time", "count"),
    [
        ({"lastTimestamp": "t2", "count": 3}, "t2", 3),
        ({"eventTime": "t1"}, "t1", 1),
        ({"eventTime": "t1", "series": {"lastObservedTime": "t3", "count": 7}}, "t3", 7),
        ({}, "t0", 1),
    ],
)
def test_time_and_number(event: dict[str, Any], time: str, count: int) -> None:
    found = event_of({"metadata": {"creationTimestamp": "t0"}, "reason": "R", "message": "m", **event})
    assert (found.time, found.count, found.type) == (time, count, "Normal")


async def test_events_are_those_of_the_run_and_newest_first() -> None:
    api = rest_api()
    api.add(run_object("first"))
    items = [{"metadata": {"name": name}, "lastTimestamp": name, "reason": "R"} for name in ("t1", "t3", "t2")]
    api.cluster.answers["list events in namespace team"] = [{"items": items, "metadata": {"continue": "more"}}]
    user = api.user("ann", "list events in team", "list rlruns in team")
    answer = await api.client.get("/namespaces/team/runs/first/events", headers=user)
    assert [item["time"] for item in answer.json()["items"]] == ["t3", "t2", "t1"]
    assert answer.json()["isComplete"] is False
    (request,) = api.cluster.requests
    assert request.query["fieldSelector"] == f"involvedObject.uid={uid_of(1)}"
    assert request.extra_headers["Authorization"] == "Bearer token-of-ann"
