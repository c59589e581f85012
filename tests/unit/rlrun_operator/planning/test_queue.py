"""Order of waiting runs: priority, share of the namespace, time; limits hold, and nothing waits for ever."""

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun_operator.config.settings import QueueSettings
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.planning.queue import (
    PoolSlots,
    QueuedRun,
    QueueLimits,
    QueuePosition,
    exceeded_capacity,
    next_change,
    queue_positions,
)

from tests.support.run_states import at

GPU = "nvidia.com/gpu"


def limits(gpus: int | None = None, **fields: Any) -> QueueLimits:
    if gpus is not None:
        fields["capacity"] = {GPU: str(gpus), **fields.get("capacity", {})}
    return QueueLimits.of(QueueSettings.model_validate(fields, by_alias=True, by_name=False))


def gpus(count: int) -> dict[str, int]:
    return {GPU: count * 1000}


def run(name: str, count: int = 1, namespace: str = "a", since: float = 0, **more: Any) -> QueuedRun:
    return QueuedRun(RunKey(namespace, name), f"uid-{name}", at(since), gpus(count), **more)


def placed(count: int = 1, namespace: str = "a", times: int = 1) -> list[QueuedRun]:
    return [run("placed", count, namespace)] * times


def turns(
    in_use: list[QueuedRun], waiting: list[QueuedRun], limited: QueueLimits, now: float = 100
) -> dict[str, QueuePosition]:
    names = {one.uid: one.key.name for one in waiting}
    return {names[uid]: turn for uid, turn in queue_positions(in_use, waiting, limited, at(now)).items()}


def admitted(found: dict[str, QueuePosition]) -> list[str]:
    return [name for name, turn in found.items() if turn.waits_for is None]


def test_runs_get_places_in_the_order_of_their_waiting_until_the_limit() -> None:
    found = turns(placed(), [run("late", since=2), run("first", since=1), run("last", since=3)], limits(maxRuns=2))
    assert list(found) == ["first", "late", "last"]
    assert admitted(found) == ["first"]
    assert [found[n].runs_ahead for n in ("late", "last")] == [0, 1]
    assert found["late"].waits_for == "RunLimitReached"


def test_higher_priority_comes_first() -> None:
    waiting = [run("old", since=0), run("urgent", since=9, priority=100), run("low", since=0, priority=-5)]
    assert list(turns([], waiting, limits(maxRuns=1))) == ["urgent", "old", "low"]


def test_the_namespace_with_fewer_runs_comes_first_and_each_place_counts() -> None:
    waiting = [run(f"a{i}", namespace="a", since=i) for i in range(3)]
    waiting += [run(f"b{i}", namespace="b", since=10 + i) for i in range(3)]
    found = turns(placed(namespace="a", times=2), waiting, limits(maxRuns=4))
    assert list(found) == ["b0", "b1", "a0", "b2", "a1", "a2"]
    assert admitted(found) == ["b0", "b1"]


def test_runs_wait_whole_for_the_resources_of_their_namespace() -> None:
    own = {"namespaces": {"a": {"capacity": {GPU: "4"}}}}
    waiting = [run("a1", 3, since=1), run("a2", 2, since=2), run("b1", 9, "b", since=3)]
    found = turns(placed(1), waiting, limits(**own))
    assert sorted(admitted(found)) == ["a1", "b1"], "the other namespace has no limit, and waits for nobody"
    assert found["a2"].waits_for == "NamespaceLimitReached"
    assert admitted(turns(placed(4), waiting, limits(**own))) == ["b1"]
    both = limits(8, **own)
    assert exceeded_capacity(gpus(5), both, "a") == exceeded_capacity(gpus(9), both, "b") == [GPU]
    assert exceeded_capacity(gpus(5), both, "b") == exceeded_capacity(gpus(4), both, "a") == []


def test_a_large_run_is_not_passed_by_small_ones_of_its_namespace() -> None:
    own = limits(namespaces={"a": {"capacity": {GPU: "4"}}}, backfillSeconds=600)
    assert admitted(turns(placed(2), [run("large", 4, since=1), run("small", 1, since=2)], own)) == []


def test_no_run_of_a_namespace_begins_beside_one_of_unknown_size() -> None:
    own = limits(namespaces={"a": {"capacity": {GPU: "4"}}})
    unknown = QueuedRun(RunKey("a", "unread"), "uid-unread", at(0), None)
    assert admitted(turns([unknown], [run("a1"), run("b1", namespace="b")], own)) == ["b1"]


def test_a_weight_gives_a_namespace_its_part() -> None:
    waiting = [run(f"{n}{i}", namespace=n, since=i) for n in "ab" for i in range(8)]
    found = turns([], waiting, limits(maxRuns=8, namespaces={"a": {"weight": 3}}))
    assert Counter(name[0] for name in admitted(found)) == {"a": 6, "b": 2}


def test_a_share_is_the_largest_fraction_of_a_limit() -> None:
    in_use = [*placed(8, "big"), *placed(1, "small", times=3)]
    waiting = [run("of-big", namespace="big", since=0), run("of-small", namespace="small", since=5)]
    assert list(turns(in_use, waiting, limits(16, maxRuns=100))) == ["of-small", "of-big"]
    assert list(turns(in_use, waiting, limits(100, maxRuns=10))) == ["of-big", "of-small"]
    assert list(turns(in_use, waiting, limits(maxRunsPerNamespace=9))) == ["of-big", "of-small"]


def test_a_namespace_at_its_own_limit_holds_up_no_other() -> None:
    waiting = [run("mine", since=0), run("other", namespace="b", since=5)]
    found = turns(placed(namespace="a", times=2), waiting, limits(maxRunsPerNamespace=2, maxRuns=10))
    assert admitted(found) == ["other"]
    assert found["mine"].waits_for == "NamespaceLimitReached"


def test_a_namespace_may_have_a_limit_of_its_own_or_none_of_its_runs() -> None:
    limited = limits(maxRunsPerNamespace=1, namespaces={"b": {"maxRuns": 2}, "c": {"maxRuns": 0}, "d": {"weight": 2}})
    waiting = [run(f"{n}{i}", namespace=n, since=i) for n in "abcd" for i in range(3)]
    assert Counter(name[0] for name in admitted(turns([], waiting, limited))) == {"a": 1, "b": 2, "d": 1}


def test_in_strict_order_a_run_keeps_its_resources_from_later_ones() -> None:
    waiting = [run("large", 8, since=0), run("small", 1, since=1), run("cpu", 0, since=2)]
    found = turns(placed(6), waiting, limits(8))
    assert found["large"].waits_for == found["small"].waits_for == "WaitingForCapacity"
    assert admitted(found) == ["cpu"], "it takes nothing that the others need"
    assert (found["large"].blocked_time, found["small"].blocked_time) == (at(100), None)


def test_in_strict_order_the_last_place_is_kept_as_well() -> None:
    found = turns(placed(6), [run("large", 8, since=0), run("cpu", 0, since=2)], limits(8, maxRuns=2))
    assert found["cpu"].waits_for == "RunLimitReached"


def test_smaller_runs_start_before_a_blocked_one_for_a_time() -> None:
    limited = limits(8, backfillSeconds=60)
    large, small = run("large", 8, since=0, blocked_time=at(100)), run("small", 1, since=1)
    assert admitted(turns(placed(6), [large, small], limited, now=159)) == ["small"]
    assert admitted(turns(placed(6), [large, small], limited, now=160)) == []


def test_the_time_of_a_blocked_run_begins_when_it_is_the_first() -> None:
    limited = limits(8, backfillSeconds=60)
    waiting = [run("large", 8, since=0), run("second", 7, since=1)]
    found = turns(placed(6), waiting, limited, now=500)
    assert (found["large"].blocked_time, found["second"].blocked_time) == (at(500), None)
    assert next_change(found.values(), limited, at(500)) == at(560)
    assert next_change(found.values(), limited, at(560)) is None


def test_the_order_changes_next_at_the_earliest_time_that_is_to_come() -> None:
    limited = limits(8, backfillSeconds=60)
    blocked = [QueuePosition(0, "WaitingForCapacity", at(seconds)) for seconds in (10, 100, 200)]
    assert next_change(blocked, limited, at(100)) == at(160)


def test_a_run_that_was_blocked_for_the_time_comes_before_smaller_shares() -> None:
    """Otherwise a namespace whose runs are short gets every turn."""
    waiting = [run("large", 8, "a", since=0, blocked_time=at(0)), run("short", 1, "b", since=50)]
    limited = limits(8, backfillSeconds=60)
    assert list(turns(placed(1, "a"), waiting, limited, now=59)) == ["short", "large"]
    assert list(turns(placed(1, "a"), waiting, limited, now=60)) == ["large", "short"]


def test_a_blocked_run_whose_namespace_is_at_its_limit_keeps_nothing_from_others() -> None:
    waiting = [run("large", 4, "a", since=0, blocked_time=at(0)), run("other", 2, "b", since=50)]
    found = turns(placed(4, "a", times=2), waiting, limits(10, maxRunsPerNamespace=2))
    assert admitted(found) == ["other"]


def test_nothing_starts_while_the_demand_of_a_running_run_is_unknown() -> None:
    unknown = [QueuedRun(RunKey("a", "placed"), "uid-placed", at(0))]
    found = turns(unknown, [run("next")], limits(8))
    assert (found["next"].waits_for, found["next"].blocked_time) == ("WaitingForCapacity", None)
    assert admitted(turns(unknown, [run("next")], limits(maxRuns=2))) == ["next"], "its number is known"


def test_an_unknown_demand_of_an_earlier_run_is_waited_for() -> None:
    unknown = QueuedRun(RunKey("a", "unseen"), "uid-unseen", at(0))
    found = turns([], [unknown, run("later", since=1)], limits(8))
    assert admitted(found) == ["unseen"]
    assert (found["later"].waits_for, found["later"].blocked_time) == ("WaitingForCapacity", None)
    assert admitted(turns([], [unknown, run("later", since=1)], limits(maxRuns=2))) == ["unseen", "later"]
    assert admitted(turns([], [unknown, run("later", since=1)], limits(maxRuns=1))) == ["unseen"]


def test_what_no_capacity_has_room_for_is_named() -> None:
    limited = limits(8, capacity={"cpu": "4"})
    assert exceeded_capacity({GPU: 8000, "cpu": 4000}, limited, "a") == []
    assert exceeded_capacity({GPU: 8001, "cpu": 4001, "memory": 10**15}, limited, "a") == ["cpu", GPU]


@st.composite
def queues(draw: st.DrawFn) -> tuple[QueueLimits, list[QueuedRun], list[QueuedRun]]:
    number = st.integers(1, 6)
    namespace = st.sampled_from("abc")
    fields: dict[str, Any] = {"backfillSeconds": draw(st.sampled_from([0, 30, 10**5]))}
    for name in ("maxRuns", "maxRunsPerNamespace"):
        if draw(st.booleans()):
            fields[name] = draw(number)
    fields["namespaces"] = {
        n: {"weight": draw(st.integers(1, 3)), "maxRuns": draw(st.none() | st.integers(0, 3))}
        for n in draw(st.sets(namespace))
    }
    limited = limits(draw(st.none() | st.integers(4, 12)), **fields)
    in_use = [
        run("placed", namespace=draw(namespace), count=draw(st.integers(0, 4))) for _ in range(draw(st.integers(0, 4)))
    ]
    waiting = [
        run(
            str(i),
            draw(st.integers(0, 4)),
            draw(namespace),
            draw(st.integers(0, 3)),
            priority=draw(st.integers(0, 1)),
            blocked_time=draw(st.none() | st.integers(40, 100).map(at)),
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    return limited, in_use, waiting


def runs_by_namespace(in_use: list[QueuedRun]) -> Counter[str]:
    return Counter(one.key.namespace for one in in_use)


def demand_of(in_use: list[QueuedRun]) -> int:
    return sum((one.demand or {})[GPU] for one in in_use)


@settings(max_examples=400, deadline=None)
@given(queues(), st.randoms(use_true_random=False))
def test_no_limit_is_exceeded_and_the_order_of_arguments_means_nothing(
    queue: tuple[QueueLimits, list[QueuedRun], list[QueuedRun]], shuffled: random.Random
) -> None:
    limited, in_use, waiting = queue
    found = queue_positions(in_use, waiting, limited, at(100))
    assert set(found) == {one.uid for one in waiting}
    after = [*in_use, *(w for w in waiting if found[w.uid].waits_for is None)]
    maximum = limited.settings.max_runs
    assert maximum is None or len(after) <= max(maximum, len(in_use))
    before = runs_by_namespace(in_use)
    for namespace, count in runs_by_namespace(after).items():
        limit = limited.runs_of(namespace)
        assert limit is None or count <= max(limit, before[namespace])
    if limited.capacity:
        assert demand_of(after) <= max(limited.capacity[GPU], demand_of(in_use))
    in_order = [uid for uid in found if found[uid].waits_for is not None]
    assert [found[uid].runs_ahead for uid in in_order] == list(range(len(in_order)))
    shuffled.shuffle(in_use)
    shuffled.shuffle(waiting)
    assert list(queue_positions(in_use, waiting, limited, at(100)).items()) == list(found.items())


@settings(max_examples=400, deadline=None)
@given(queues())
def test_no_run_takes_what_an_earlier_one_waits_for_unless_it_may_pass(
    queue: tuple[QueueLimits, list[QueuedRun], list[QueuedRun]],
) -> None:
    limited, in_use, waiting = queue
    if not limited.capacity:
        return
    found = queue_positions(in_use, waiting, limited, at(100))
    by_uid = {one.uid: one for one in waiting}
    order = list(found)
    used = demand_of(in_use)
    admitted_so_far = 0
    strict = not limited.settings.backfill_seconds
    kept = 0
    for uid in order:
        turn, demand = found[uid], by_uid[uid].demand[GPU]
        if turn.waits_for is None:
            assert not demand or used + admitted_so_far + kept + demand <= limited.capacity[GPU]
            admitted_so_far += demand
        elif turn.waits_for != "NamespaceLimitReached":
            blocked = turn.blocked_time
            if strict or (blocked is not None and at(100) - blocked >= limited.backfill):
                kept += demand


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 5, 30]))
def test_every_run_starts_while_others_keep_coming(seed: int, backfill: int) -> None:
    """Short runs of other namespaces arrive at every tick; the runs of the beginning must all start nevertheless."""
    chance = random.Random(seed)
    limited = limits(8, maxRuns=6, backfillSeconds=backfill)
    names = itertools.count()
    first = [run(f"first-{next(names)}", chance.choice([1, 4, 8]), "a", since=0) for _ in range(6)]
    waiting = {one.uid: one for one in first}
    running: list[tuple[int, QueuedRun]] = [(10**9, run("placed", 0))]
    for now in range(1, 2000):
        running = [(end, one) for end, one in running if end > now]
        if len(waiting) < 30:
            other = run(f"other-{next(names)}", 1, chance.choice("bcd"), since=now)
            waiting[other.uid] = other
        found = queue_positions([one for _, one in running], waiting.values(), limited, at(now))
        for uid, turn in found.items():
            one = waiting[uid]
            if turn.waits_for is None:
                running.append((now + chance.randint(1, 9), one))
                del waiting[uid]
            else:
                one.blocked_time = turn.blocked_time
        assert sum((one.demand or {})[GPU] for _, one in running) <= 8000
        if not any(one.uid in waiting for one in first):
            return
    raise AssertionError(f"still waiting: {[one.key.name for one in first if one.uid in waiting]}")


def pooled(name: str, slots: int = 2, pool_gpus: int = 4, pool: str = "p", **more: Any) -> QueuedRun:
    return run(name, pool=PoolSlots("a", pool, slots, gpus(pool_gpus)), **more)


def test_a_full_pool_blocks_its_own_runs_only() -> None:
    waiting = [
        pooled("third", since=1),
        pooled("fourth", since=2),
        pooled("other", pool="q", since=3),
        run("own", since=4),
    ]
    found = turns([pooled("one"), pooled("two")], waiting, limits())
    assert admitted(found) == ["other", "own"]
    assert [found[name].waits_for for name in ("third", "fourth")] == ["PoolFull", "PoolFull"]
    assert found["fourth"].runs_ahead == 1


def test_only_runs_of_its_pool_are_ahead_of_a_run_that_waits_for_a_slot_of_it() -> None:
    in_use = [*placed(8), *(pooled(f"in {pool}", slots=1, pool=pool) for pool in "pq")]
    waiting = [
        pooled("p1", slots=1, since=1),
        pooled("q1", slots=1, pool="q", since=2),
        run("alone", since=3),
        pooled("q2", slots=1, pool="q", since=4),
        run("last", since=5),
    ]
    found = turns(in_use, waiting, limits(16))
    assert {name: turn.runs_ahead for name, turn in found.items()} == {"p1": 0, "q1": 0, "alone": 0, "q2": 1, "last": 1}


def test_runs_get_the_slots_of_a_pool_in_the_order_of_the_queue() -> None:
    waiting = [pooled("late", since=9), pooled("first", since=1), pooled("urgent", since=8, priority=5)]
    assert admitted(turns([], waiting, limits())) == ["urgent", "first"]


def test_a_pool_counts_once_and_a_run_that_is_known_by_its_pool_only_takes_a_slot() -> None:
    both = [pooled("one", since=1), pooled("two", since=2)]
    assert admitted(turns([], both, limits(6))) == ["one", "two"]
    assert admitted(turns([], both, limits(5))) == ["one"]
    assert admitted(turns([], both, limits(4))) == []
    restored = run("restored", pool=PoolSlots("a", "p"))
    assert admitted(turns([restored], both, limits())) == ["one"]


def test_pools_of_two_namespaces_with_one_name_are_two() -> None:
    there = run("there", namespace="b", pool=PoolSlots("b", "p", 1, {}))
    assert admitted(turns([pooled("one"), pooled("two")], [there], limits())) == ["there"]


def test_a_reserved_slot_is_not_given_to_a_run_behind() -> None:
    # The first run waits for GPUs, and keeps its slot in strict order.
    waiting = [pooled("first", slots=1, pool_gpus=0, since=1), pooled("second", slots=1, pool_gpus=0, since=2)]
    waiting[0].demand = gpus(9)
    found = turns([], waiting, limits(8))
    assert [found[name].waits_for for name in ("first", "second")] == ["WaitingForCapacity", "PoolFull"]


def test_the_share_of_a_namespace_has_the_pool_that_its_waiting_run_starts() -> None:
    waiting = [pooled("starts", since=1), run("a2", since=2), run("b1", 2, "b", since=3), run("b2", 2, "b", since=4)]
    assert list(turns([], waiting, limits(16))) == ["starts", "b1", "b2", "a2"]
    assert list(turns([pooled("one", 0)], waiting, limits(16))) == ["b1", "b2", "starts", "a2"]


def test_a_namespace_reserves_a_pool_for_the_run_that_starts_it() -> None:
    limited = limits(namespaces={"a": {"capacity": {GPU: "8"}}})
    found = turns(placed(4), [pooled("starts", since=1), run("small", since=2)], limited)
    assert admitted(found) == []
    assert [found["starts"].starts_pool, found["small"].starts_pool] == [True, False]


@pytest.mark.parametrize("whole", ["namespaces", "platform"])
def test_the_resources_of_a_pool_are_reserved_once(whole: str) -> None:
    capacity = {GPU: "8", "cpu": "10"}
    limited = limits(
        **({"capacity": capacity} if whole == "platform" else {"namespaces": {"a": {"capacity": capacity}}})
    )
    waiting = [pooled("starts", since=1), pooled("second", since=2), run("small", since=3)]
    for one in waiting[:2]:
        one.pool = PoolSlots("a", "p", 2, {GPU: 4000, "cpu": 4000})
    waiting[2].demand = {"cpu": 6000}
    assert admitted(turns(placed(8), waiting, limited)) == ["small"]


def test_no_run_gets_engines_that_are_reserved_for_a_run_ahead() -> None:
    # The trainers need no GPU, and the engines of the pool have not enough.
    waiting = [pooled("first", since=1), pooled("second", since=2)]
    for one in waiting:
        one.demand = gpus(0)
    assert admitted(turns(placed(6), waiting, limits(8))) == []
