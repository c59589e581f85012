"""Kept answers of all runs, confirmed with one list of each kind."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL, POD, RLCHECKPOINT, SECRET, SERVICE, WORKLOAD, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import METADATA_OF_LIST, Verb
from rlrun_operator.cache import confirmation
from rlrun_operator.cache.cached_reader import CachedReader
from rlrun_operator.cache.confirmation import FEWEST_ANSWERS, LABELS, ROUND_SECONDS, ROUNDS_WITHOUT, confirm_answers
from rlrun_operator.cache.object_cache import KEPT_SECONDS, ObjectCache, Question

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import World as OperatorWorld

KINDS = (POD, SERVICE, RLCHECKPOINT)
RUNS = [("team", f"run-{number}") for number in range(FEWEST_ANSWERS)]
PODS = len(RUNS) + 1
"""Run 2 has two."""
FIRST_LIST = ROUND_SECONDS / len(KINDS) + 30
"""Time in which the pods are listed, and nothing else."""


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
            *(child(kind, name, f"{name}-{kind.kind}".lower()) for kind in (POD, RLCHECKPOINT) for _, name in RUNS),
            child(POD, "run-2", "run-2-second"),
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
                labels = {RUN_UID_LABEL: f"uid-{run[1]}"} if kind == RLCHECKPOINT else {RUN_LABEL: run[1]}
                found += await reader.list(kind, run[0], labels)
        return [obj["metadata"]["name"] for obj in found]

    def lists(self, kind: ResourceKind) -> list[bool]:
        """Return for each list of the kind whether it was one of metadata, and forget them all."""
        asked = [r.extra_headers.get("Accept") == METADATA_OF_LIST for r in self.fake.requests if r.kind == kind]
        self.fake.requests.clear()
        return asked

    async def wait(self, seconds: float, *namespaces: str, has_looks: bool = True) -> None:
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
            await confirm_answers(self.cluster, self.cache, namespaces or (None,), KINDS, sleep)


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
    await world.wait(ROUND_SECONDS, "team")
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
    pages = world.cluster.metadata_pages

    async def metadata_pages(*request: Any) -> AsyncIterator[list[Obj]]:
        async for page in pages(*request):
            world.fake.put({**world.fake.objects["Pod", "team", "run-1-pod"], "status": {"phase": "Running"}})
            world.cache.changed(POD, world.fake.objects["Pod", "team", "run-1-pod"])
            await world.look(POD)
            yield page

    world.cluster.metadata_pages = metadata_pages  # type: ignore[method-assign]
    await world.wait(FIRST_LIST, has_looks=False)
    world.fake.requests.clear()
    await world.look(POD)
    assert world.lists(POD) == []


async def test_a_decision_reads_what_was_only_confirmed(world: World) -> None:
    moment = world.cache.moment()
    await world.wait(FIRST_LIST)
    question = Question.of_labels(POD, "team", {RUN_LABEL: "run-1"})
    assert world.cache.find(question, RUNS[1]) is not None
    assert world.cache.find(question, RUNS[1], read_after=moment) is None


async def test_secrets_are_read_again_with_pods_that_have_changed(world: World) -> None:
    async def read() -> list[str]:
        world.fake.requests.clear()
        for run in RUNS[:2]:
            await CachedReader(world.cluster, world.cache, run).get(SECRET, "team", f"{run[1]}-tokens")
        return [request.name for request in world.fake.requests if request.name]

    assert len(await read()) == 2
    del world.fake.objects["Pod", "team", "run-1-pod"]
    await world.wait(FIRST_LIST)
    assert await read() == ["run-1-tokens"]


async def test_an_answer_that_no_look_asks_for_expires(world: World) -> None:
    await world.wait(ROUND_SECONDS)
    await world.wait(3 * ROUND_SECONDS, has_looks=False)
    world.cache.drop_expired()
    assert len(world.cache) == 0


async def test_an_answer_is_kept_from_before_the_list(world: World) -> None:
    async def metadata_pages(*_: object) -> AsyncIterator[list[Obj]]:
        world.now += 100
        yield world.fake.all("Pod")

    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait(FIRST_LIST)
    world.now = ROUND_SECONDS / len(KINDS) + 0.8 * KEPT_SECONDS
    world.fake.requests.clear()
    await world.look(POD, runs=RUNS[:1])
    assert world.lists(POD) == [False]


async def test_answers_that_were_compared_together_do_not_expire_together(world: World) -> None:
    factors = itertools.count(800)
    world.cache._spread = lambda: next(factors) / 1000
    await world.wait(FIRST_LIST)
    expiries = {answer.until for answer in world.cache._answers[POD].values()}
    assert len(expiries) == len(RUNS)


async def test_a_comparison_shortens_no_time(world: World) -> None:
    before = {question: answer.until for question, answer in world.cache._answers[POD].items()}
    world.cache._spread = lambda: 0.1
    await world.wait(FIRST_LIST)
    assert {question: answer.until for question, answer in world.cache._answers[POD].items()} == before


async def test_a_few_answers_are_left_to_expire() -> None:
    world = World()
    await world.look(*KINDS, runs=RUNS[1:])
    world.fake.requests.clear()
    await world.wait(2 * ROUND_SECONDS, has_looks=False)
    assert world.fake.requests == []


async def test_a_kind_that_is_not_watched_is_not_listed(world: World) -> None:
    world.cache.watch_closed(POD)
    await world.wait(FIRST_LIST, has_looks=False)
    assert world.fake.requests == []


async def test_a_round_takes_as_long_with_many_namespaces_and_slow_lists(world: World) -> None:
    async def metadata_pages(kind: ResourceKind, namespace: str, *_: object) -> AsyncIterator[list[Obj]]:
        asked.append((kind, namespace, world.now))
        world.now += 20
        yield world.fake.all(kind.kind)

    asked: list[tuple[ResourceKind, str, float]] = []
    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait(3.25 * ROUND_SECONDS, "team", "other")
    times = [at for kind, namespace, at in asked if (kind, namespace) == (SERVICE, "team")]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == 2 * [pytest.approx(ROUND_SECONDS)]


async def test_a_list_of_more_pages_than_it_is_worth_is_given_up_for_an_hour(world: World) -> None:
    async def metadata_pages(kind: ResourceKind, *_: object) -> AsyncIterator[list[Obj]]:
        for _ in range(3):
            asked.append(kind)
            yield []

    asked: list[ResourceKind] = []
    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait((ROUNDS_WITHOUT + 2.25) * ROUND_SECONDS)
    assert asked == 2 * [kind for kind in KINDS for _ in range(2)]
    assert len(await world.look(POD)) == PODS


async def test_all_pages_of_a_list_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def metadata_pages(kind: ResourceKind, *_: object) -> AsyncIterator[list[Obj]]:
        found = world.fake.all(kind.kind)
        yield found[: PODS // 2]
        yield found[PODS // 2 :]

    monkeypatch.setattr(confirmation, "ANSWERS_PER_PAGE", 5)
    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait(6.25 * ROUND_SECONDS)
    assert world.fake.requests == []


@pytest.mark.parametrize(
    ("error", "rounds"),
    [
        (ApiError(503, "ServiceUnavailable", "later"), 1),
        (ApiError(403, "Forbidden", "no right to list"), ROUNDS_WITHOUT + 1),
        (KeyError("metadata"), ROUNDS_WITHOUT + 1),
        (TimeoutError(), ROUNDS_WITHOUT + 1),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_list_that_fails_forgets_nothing_and_is_tried_later(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception, rounds: int
) -> None:
    async def metadata_pages(kind: ResourceKind, *_: object) -> AsyncIterator[list[Obj]]:
        if kind == POD:
            asked.append(world.now)
            raise error
        yield []

    asked: list[float] = []
    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait(FIRST_LIST)
    assert "pods" in caplog.text
    assert len(await world.look(POD)) == PODS
    assert world.fake.requests == []
    asked.clear()
    await world.wait(FIRST_LIST + rounds * ROUND_SECONDS)
    assert [later - earlier for earlier, later in itertools.pairwise(asked)] == [rounds * ROUND_SECONDS]


async def test_a_list_that_hangs_ends_at_its_deadline(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def metadata_pages(*_: object) -> AsyncIterator[list[Obj]]:
        await asyncio.Event().wait()
        yield []

    monkeypatch.setattr(confirmation, "DEADLINE_SECONDS", 0.01)
    world.cluster.metadata_pages = metadata_pages  # type: ignore[assignment, method-assign]
    await world.wait(FIRST_LIST)
    assert "took longer than" in caplog.text


async def test_the_labels_are_those_by_which_looks_list(make_world: Callable[..., OperatorWorld]) -> None:
    operator_world = make_world()
    await operator_world.start()
    operator_world.cluster.requests.clear()
    await operator_world.reconcile()
    asked = {
        request.kind: request.query["labelSelector"].partition("=")[0]
        for request in operator_world.cluster.requests
        if request.verb == Verb.LIST and "labelSelector" in request.query
    }
    assert asked == {kind: key for kind, key in LABELS.items() if kind != WORKLOAD}
