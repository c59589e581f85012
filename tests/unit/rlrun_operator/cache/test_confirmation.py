"""Kept answers of all runs, confirmed with one list of each kind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import pytest
from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL, POD, RLCHECKPOINT, SERVICE, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import METADATA_OF_LIST
from rlrun_operator.cache.cached_reader import CachedReader
from rlrun_operator.cache.confirmation import FEWEST_ANSWERS, LABELS, ROUND_SECONDS, ROUNDS_WITHOUT, confirm_answers
from rlrun_operator.cache.object_cache import KEPT_SECONDS, ObjectCache

from tests.support.fake_cluster import FakeCluster

KINDS = (POD, SERVICE, RLCHECKPOINT)
RUNS = [("team", f"run-{number}") for number in range(FEWEST_ANSWERS)]


def child(kind: ResourceKind, run: str, name: str) -> Obj:
    labels = {RUN_LABEL: run, RUN_UID_LABEL: f"uid-{run}"}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"namespace": "team", "name": name, "labels": labels},
    }


class World:
    """Ten runs with a pod and a checkpoint each, whose looks are a minute apart."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fake = FakeCluster(
            *(child(kind, name, f"{name}-{kind.kind}".lower()) for kind in (POD, RLCHECKPOINT) for _, name in RUNS)
        )
        self.cluster = AsyncKubeClient(self.fake)
        self.cache = ObjectCache(lambda: self.now, spread=lambda: 0.8)
        for kind in ALL.values():
            self.cache.watch_opened(kind, None, ())

    async def look(self, *kinds: ResourceKind, runs: Iterable[tuple[str, str]] = RUNS) -> list[str]:
        """Return the names of the objects that looks at the runs find."""
        found: list[Obj] = []
        for run in runs:
            reader = CachedReader(self.cluster, self.cache, run)
            for kind in kinds:
                value = run[1] if LABELS[kind] == RUN_LABEL else f"uid-{run[1]}"
                found += await reader.list(kind, run[0], {LABELS[kind]: value})
        return [obj["metadata"]["name"] for obj in found]

    def lists(self, kind: ResourceKind) -> list[bool]:
        """Return for each list of the kind whether it was one of metadata, and forget them all."""
        asked = [r.extra_headers.get("Accept") == METADATA_OF_LIST for r in self.fake.requests if r.kind == kind]
        self.fake.requests.clear()
        return asked

    async def wait(self, seconds: float, *, has_looks: bool = True, namespace: str | None = None) -> None:
        """Let answers be confirmed for this time, with a look at each run a minute."""
        until = self.now + seconds

        async def sleep(pause: float) -> None:
            ends = self.now + pause
            while self.now < ends:
                self.now += min(60.0, ends - self.now)
                if self.now >= until:
                    raise asyncio.CancelledError
                if has_looks:
                    await self.look(*KINDS)

        with pytest.raises(asyncio.CancelledError):
            await confirm_answers(self.cluster, self.cache, [namespace], KINDS, sleep)


@pytest.fixture
async def world() -> World:
    found = World()
    await found.look(*KINDS)
    found.fake.requests.clear()
    return found


async def test_answers_of_quiet_runs_are_confirmed_for_hours_and_not_read_again(world: World) -> None:
    await world.wait(6.25 * ROUND_SECONDS)
    assert world.now > 3 * KEPT_SECONDS
    asked = Counter(request.kind for request in world.fake.requests)
    assert asked == {POD: 6, SERVICE: 6, RLCHECKPOINT: 6}, "metadata of all runs, once a round, also if there are none"
    assert all(world.lists(POD))


async def test_answers_in_one_namespace_are_confirmed_there(world: World) -> None:
    theirs = ("other", "run-1")
    for _ in range(2):
        await world.look(POD, runs=[theirs])
    world.fake.requests.clear()
    await world.wait(ROUND_SECONDS, namespace="team")
    assert {request.namespace for request in world.fake.requests} == {"team"}
    assert all(world.lists(POD))
    # Their answer is neither forgotten nor confirmed.
    new = child(POD, "run-1", "new")
    new["metadata"]["namespace"] = "other"
    world.fake.put(new)
    assert await world.look(POD, runs=[theirs]) == []
    world.now = 0.8 * KEPT_SECONDS
    assert await world.look(POD, runs=[theirs]) == ["new"]


async def test_reads_of_single_objects_are_left_alone(world: World) -> None:
    reader = CachedReader(world.cluster, world.cache, RUNS[0])
    await reader.get(POD, "team", "run-0-pod")
    await reader.get(POD, "team", "no-such-pod")
    await world.wait(ROUND_SECONDS)
    world.fake.requests.clear()
    assert await reader.get(POD, "team", "run-0-pod")
    assert await reader.get(POD, "team", "no-such-pod") is None
    assert world.fake.requests == []


async def test_what_a_lost_event_has_made_wrong_is_read_again_within_a_round(world: World) -> None:
    del world.fake.objects["Pod", "team", "run-3-pod"]
    world.fake.put(child(POD, "run-4", "run-4-second"))
    world.fake.put({**world.fake.objects["Pod", "team", "run-5-pod"], "status": {"phase": "Failed"}})
    await world.wait(ROUND_SECONDS)
    names = await world.look(POD)
    assert "run-3-pod" not in names
    assert "run-4-second" in names
    assert world.lists(POD).count(False) == 3, "only runs whose objects have changed are read again"


async def test_what_has_changed_after_the_list_stays_known(world: World) -> None:
    async def metadata_pages(*_: object) -> AsyncIterator[list[Obj]]:
        yield world.fake.all("Pod")
        newer = {**world.fake.objects["Pod", "team", "run-1-pod"], "status": {"phase": "Running"}}
        world.fake.put(newer)
        world.cache.changed(POD, world.fake.objects["Pod", "team", "run-1-pod"])
        await world.look(POD)

    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait(ROUND_SECONDS / 3 + 30, has_looks=False)
    world.fake.requests.clear()
    await world.look(POD)
    assert world.lists(POD) == []


async def test_an_answer_that_no_look_asks_for_expires(world: World) -> None:
    await world.wait(ROUND_SECONDS)
    await world.wait(3 * ROUND_SECONDS, has_looks=False)
    world.cache.drop_expired()
    assert len(world.cache) == 0


async def test_a_few_answers_are_left_to_expire() -> None:
    world = World()
    await world.look(*KINDS, runs=RUNS[1:])
    world.fake.requests.clear()
    await world.wait(2 * ROUND_SECONDS, has_looks=False)
    assert world.fake.requests == []


async def test_a_list_of_more_pages_than_it_is_worth_is_given_up_for_an_hour(world: World) -> None:
    async def metadata_pages(kind: ResourceKind, *_: object) -> AsyncIterator[list[Obj]]:
        for _page in range(3):
            asked.append(kind)
            yield []

    asked: list[ResourceKind] = []
    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait((ROUNDS_WITHOUT + 2.25) * ROUND_SECONDS)
    assert asked == 2 * [kind for kind in KINDS for _ in range(2)]
    assert len(await world.look(POD)) == len(RUNS)


async def test_a_list_that_fails_forgets_nothing_and_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fake.answers["list pods"] = [ApiError(403, "Forbidden", "no right to list")]
    await world.wait(ROUND_SECONDS / 3 + 30)
    del world.fake.answers["list pods"]
    assert "no right to list" in caplog.text
    world.fake.requests.clear()
    assert len(await world.look(POD)) == len(RUNS)
    assert world.lists(POD) == []
    await world.wait(ROUND_SECONDS)
    assert world.lists(POD) == [True]
