"""Events of Kubernetes inform, and are never needed."""

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.events import EventRecord
from rlrun_operator.cluster.events import write_events

from tests.support.cluster_objects import run_object
from tests.support.fake_cluster import FakeCluster


async def test_events_are_written_about_their_object() -> None:
    cluster = FakeCluster()
    await write_events(cluster.kube, run_object(), [EventRecord(reason="Started", message="It runs.")])
    (event,) = cluster.events
    assert event["involvedObject"]["name"] == "reverse"
    assert (event["reason"], event["message"]) == ("Started", "It runs.")


async def test_an_event_that_is_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()

    async def refuse(_: object) -> None:
        raise ApiError(403, "Forbidden", "no right")

    cluster.create = refuse  # type: ignore[method-assign, assignment]
    await write_events(cluster.kube, run_object(), [EventRecord(reason="Started", message="It runs.")])
    assert "Could not write Event Started about reverse" in caplog.text
