"""A look's reads, with the API server or without it."""

import time

import pytest
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import POD, RLRUN
from rlrun_operator.cache.cached_reader import CachedReader
from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.cache.recording_transport import RecordingTransport

from tests.support.cache_feed import CacheFeed
from tests.support.cluster_objects import run_object
from tests.support.fake_cluster import FakeCluster

RUN = ("team", "reverse")
LABELS = {"rlrun.dev/run": "reverse"}


class Setup:
    def __init__(self) -> None:
        self.fake = FakeCluster(run_object())
        self.cache = ObjectCache(time.monotonic)
        self.feed = CacheFeed(self.fake, self.cache)
        self.client = AsyncKubeClient(RecordingTransport(self.fake, self.cache))

    def reader(self) -> CachedReader:
        return CachedReader(self.client, self.cache, RUN)


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_the_second_look_asks_for_nothing(setup: Setup) -> None:
    first, second = setup.reader(), setup.reader()
    for reader in (first, second):
        run = await reader.get(RLRUN, "team", "reverse")
        assert run is not None
        assert run["metadata"]["name"] == "reverse"
        assert await reader.get(RLRUN, "team", "another") is None
        assert await reader.list(POD, "team", LABELS) == []
    assert len(setup.fake.requests) == 3
    assert (first.has_kept_answers, second.has_kept_answers) == (False, True)


async def test_a_look_that_decides_reads_again_what_it_has_not_read_itself(setup: Setup) -> None:
    await setup.reader().get(RLRUN, "team", "reverse")
    moment = setup.cache.moment()
    await setup.reader().list(POD, "team", LABELS)
    setup.fake.requests.clear()
    reader = CachedReader(setup.client, setup.cache, RUN, moment)
    await reader.get(RLRUN, "team", "reverse")
    await reader.list(POD, "team", LABELS)
    assert setup.fake.calls == ["get RLRun team/reverse"]


async def test_what_is_known_to_be_empty_is_not_asked_for_and_own_writes_join_it(setup: Setup) -> None:
    assert await setup.reader().list(POD, "team", LABELS, is_known_empty=True) == []
    assert setup.fake.requests == []
    metadata = {"name": "a", "namespace": "team", "labels": LABELS}
    await setup.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})
    for is_known_empty in (True, False):
        found = await setup.reader().list(POD, "team", LABELS, is_known_empty=is_known_empty)
        assert [obj["metadata"]["name"] for obj in found] == ["a"]
    assert len(setup.fake.requests) == 1


async def test_what_is_known_to_be_missing_is_not_asked_for_and_an_own_write_joins_it(setup: Setup) -> None:
    assert await setup.reader().get(POD, "team", "a", is_known_missing=True) is None
    assert setup.fake.requests == []
    metadata = {"name": "a", "namespace": "team"}
    await setup.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})
    for is_known_missing in (True, False):
        found = await setup.reader().get(POD, "team", "a", is_known_missing=is_known_missing)
        assert found is not None
        assert found["metadata"]["name"] == "a"
    assert len(setup.fake.requests) == 1


async def test_a_look_that_rests_on_an_object_reads_again_what_is_older_only(setup: Setup) -> None:
    await setup.reader().list(POD, "team", LABELS)
    await setup.reader().get(RLRUN, "team", "reverse")
    await setup.reader().list(POD, "team", {"rlrun.dev/run": "another"})
    setup.fake.requests.clear()
    reader = setup.reader()
    await reader.get(RLRUN, "team", "reverse")
    reader.rest_on(RLRUN, "team", "reverse")
    await reader.list(POD, "team", {"rlrun.dev/run": "another"})
    assert setup.fake.requests == []
    await reader.list(POD, "team", LABELS)
    assert setup.fake.calls == ["list pods in namespace team"]
    assert not reader.has_kept_answers


async def test_a_look_cannot_rest_on_an_object_that_is_not_kept(setup: Setup) -> None:
    await setup.reader().list(POD, "team", LABELS)
    reader = setup.reader()
    reader.rest_on(RLRUN, "team", "reverse")
    await reader.list(POD, "team", LABELS)
    assert reader.has_kept_answers


async def test_a_look_that_rests_on_an_object_keeps_a_later_limit(setup: Setup) -> None:
    await setup.reader().get(RLRUN, "team", "reverse")
    await setup.reader().list(POD, "team", LABELS)
    reader = CachedReader(setup.client, setup.cache, RUN, setup.cache.moment())
    reader.rest_on(RLRUN, "team", "reverse")
    setup.fake.requests.clear()
    await reader.list(POD, "team", LABELS)
    assert setup.fake.calls == ["list pods in namespace team"]


async def test_an_error_is_not_an_answer(setup: Setup) -> None:
    setup.fake.answers["list pods in namespace team"] = [ApiError(500, "Internal", "broken"), {"items": []}]
    with pytest.raises(ApiError):
        await setup.reader().list(POD, "team", LABELS)
    assert await setup.reader().list(POD, "team", LABELS) == []
    assert len(setup.fake.requests) == 2


async def test_an_own_write_is_seen_without_a_request(setup: Setup) -> None:
    await setup.reader().get(RLRUN, "team", "reverse")
    await setup.client.patch(RLRUN, "team", "reverse", {"metadata": {"annotations": {"a": "b"}}})
    setup.fake.requests.clear()
    reader = setup.reader()
    run = await reader.get(RLRUN, "team", "reverse")
    assert run is not None
    assert run["metadata"]["annotations"] == {"a": "b"}
    assert reader.has_kept_answers
    assert setup.fake.requests == []


@pytest.mark.parametrize("ending", ["delete", "unknown"])
async def test_after_a_deletion_or_a_write_of_unknown_outcome_the_api_server_is_asked(
    setup: Setup, ending: str
) -> None:
    await setup.reader().get(RLRUN, "team", "reverse")
    if ending == "delete":
        await setup.client.delete(RLRUN, "team", "reverse")
    else:
        phrase = "change RLRun team/reverse"
        setup.fake.answers[phrase] = [ApiError(0, "Timeout", "no response")]
        with pytest.raises(ApiError):
            await setup.client.patch(RLRUN, "team", "reverse", {"metadata": {}})
    reader = setup.reader()
    assert (await reader.get(RLRUN, "team", "reverse") is None) is (ending == "delete")
    assert not reader.has_kept_answers


async def test_a_new_object_is_missing_in_no_answer(setup: Setup) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "team", "labels": LABELS},
        "spec": {},
    }
    for name, fails in (("a", False), ("b", True)):
        pod["metadata"]["name"] = name
        before = len(await setup.reader().list(POD, "team", LABELS))
        if fails:
            # The API server has created it, but its answer was lost.
            setup.fake.put(pod)
            setup.fake.answers[f"create Pod team/{name}"] = [ApiError(0, "Timeout", "no response")]
            with pytest.raises(ApiError):
                await setup.client.create(pod)
        else:
            await setup.client.create(pod)
        assert len(await setup.reader().list(POD, "team", LABELS)) == before + 1
