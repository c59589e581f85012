"""Runs share the thread fairly, whatever the length of their units and steps."""

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable

import pytest
from rlrun_trainer.runtime.compute_thread import PLATFORM, Compute, Units


class Clock:
    """Clock that only units advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Thread with recorded units, which starts when every run has its work."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.compute = Compute(self.clock)
        self.order: list[str] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: list[asyncio.Task[str]] = []
        """Calls from units."""
        self.enough: int | None = None
        """Number of units after which `stopped` is set, and further units are not recorded."""
        self.stopped = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._gate = threading.Event()
        self._opened = asyncio.ensure_future(self.compute.run(PLATFORM, self._gate.wait))

    def units(self, owner: str, count: int, seconds: float = 1.0) -> Units[str]:
        for number in range(count):
            if number:
                yield
            if len(self.order) == self.enough:
                return owner
            self.order.append(owner)
            self.seconds[owner] += seconds
            self.clock.now += seconds
            if len(self.order) == self.enough:
                self._loop.call_soon_threadsafe(self.stopped.set)
        return owner

    def call(self, owner: str, count: int, seconds: float = 1.0) -> "asyncio.Task[str]":
        return asyncio.ensure_future(self.compute.run_units(owner, self.units, owner, count, seconds))

    def call_from_unit(self, owner: str, count: int, seconds: float = 1.0) -> None:
        """Call from the thread, and return when the call waits."""
        self._loop.call_soon_threadsafe(lambda: self.calls.append(self.call(owner, count, seconds)))
        self.wait_for_loop()

    def wait_for_loop(self) -> None:
        """Wait in the thread until the event loop has handled what happened before, in several rounds."""
        for _ in range(6):
            turn = threading.Event()
            self._loop.call_soon_threadsafe(turn.set)
            assert turn.wait(10)

    def save(self, owner: str, function: Callable[[], None]) -> "asyncio.Task[None]":
        return asyncio.ensure_future(self.compute.run(owner, function))

    async def start(self) -> None:
        await asyncio.sleep(0)
        self._gate.set()
        await self._opened


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.compute.close()


def longest_lead(order: list[str], one: str, other: str) -> int:
    """Return by how many units one of two runs was ahead of the other at most, while both had work."""
    ends = min(len(order) - 1 - order[::-1].index(owner) for owner in (one, other))
    leads = itertools.accumulate({one: 1, other: -1}.get(owner, 0) for owner in order[: ends + 1])
    return max(map(abs, leads))


async def test_two_runs_with_work_are_at_most_two_units_apart(bench: Bench) -> None:
    calls = [bench.call("long", 64), *(bench.call("short", 1) for _ in range(64))]
    await bench.start()
    assert await asyncio.gather(*calls) == ["long", *["short"] * 64]
    assert longest_lead(bench.order, "long", "short") <= 2


async def test_eight_runs_get_equal_time_for_batches_of_1_to_64(bench: Bench) -> None:
    shapes = {f"run{n}": (2**n % 127 or 1, 0.5 + n / 4) for n in range(8)}
    calls = [
        bench.call(owner, min(units, 64), seconds)
        for owner, (units, seconds) in shapes.items()
        for _ in range(400 // min(units, 64))
    ]
    bench.enough = 1600
    await bench.start()
    await asyncio.gather(*calls)
    used = list(bench.seconds.values())
    jain = sum(used) ** 2 / (8 * sum(value**2 for value in used))
    assert jain >= 0.98


async def test_an_idle_run_saves_up_no_time(bench: Bench) -> None:
    def busy() -> Units[None]:
        for number in range(40):
            if number == 20:
                bench.call_from_unit("idle", 10)
            yield from bench.units("busy", 1)
            yield

    await bench.start()
    await bench.compute.run_units("busy", busy)
    assert longest_lead(bench.order[20:], "busy", "idle") <= 2
    await asyncio.gather(*bench.calls)


async def test_a_run_gains_nothing_by_pauses_between_its_steps(bench: Bench) -> None:
    def steady() -> Units[None]:
        for _ in range(60):
            bench.wait_for_loop()
            if all(call.done() for call in bench.calls):
                bench.call_from_unit("pausing", 1, 5.0)
            yield from bench.units("steady", 1)
            yield

    await bench.start()
    await bench.compute.run_units("steady", steady)
    assert 40 <= bench.seconds["pausing"] <= 70
    await asyncio.gather(*bench.calls)


async def test_tasks_of_a_run_keep_their_order(bench: Bench) -> None:
    done: list[int] = []
    calls = [asyncio.ensure_future(bench.compute.run("one", done.append, n)) for n in range(5)]
    await bench.start()
    await asyncio.gather(*calls)
    assert done == [0, 1, 2, 3, 4]


async def test_a_failure_ends_only_its_own_task(bench: Bench) -> None:
    def failing() -> Units[None]:
        yield
        raise ValueError("no")

    failed = asyncio.ensure_future(bench.compute.run_units("bad", failing))
    others = [bench.call("good", 3), bench.call("bad", 2)]
    await bench.start()
    with pytest.raises(ValueError, match="no"):
        await failed
    assert await asyncio.gather(*others) == ["good", "bad"]


async def test_a_cancelled_caller_does_not_stop_the_work(bench: Bench) -> None:
    call = bench.call("one", 5)
    await asyncio.sleep(0)
    call.cancel()
    bench.enough = 5
    await bench.start()
    await bench.stopped.wait()
    assert bench.order == ["one"] * 5


async def test_closing_cancels_what_waits(bench: Bench) -> None:
    call = bench.call("one", 5)
    await asyncio.sleep(0)
    bench.compute.close()
    await bench.start()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert bench.order == []


async def test_time_used_before_the_thread_was_idle_counts_no_more(bench: Bench) -> None:
    await bench.start()
    await bench.call("early", 1, 600.0)
    await bench.compute.run(PLATFORM, int)
    del bench.order[:]
    gate = threading.Event()
    waiting = asyncio.ensure_future(bench.compute.run(PLATFORM, gate.wait))
    await asyncio.sleep(0)
    calls = [bench.call(owner, 10, 10.0) for owner in ("early", "late", "later")]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(waiting, *calls)
    assert bench.order.index("early") < 4


async def test_before_the_end_one_step_is_finished_after_another(bench: Bench) -> None:
    def snapshot() -> None:
        bench.order.append("snapshot")

    def step(owner: str) -> Units[None]:
        for number in range(6):
            if number == 2 and owner == "b":
                bench.compute.finish_in_turn()
            yield from bench.units(owner, 1)
            if number == 5 and owner == "a":
                bench._loop.call_soon_threadsafe(lambda: saved.append(bench.save("a", snapshot)))
                bench.wait_for_loop()
            yield

    saved: list[asyncio.Task[None]] = []
    calls = [asyncio.ensure_future(bench.compute.run_units(owner, step, owner)) for owner in ("a", "b")]
    await bench.start()
    await asyncio.gather(*calls)
    await asyncio.gather(*saved)
    ending = bench.order[bench.order.index("b", bench.order.index("b", bench.order.index("b") + 1) + 1) + 1 :]
    first = ending[0]
    steps = [owner for owner in ending if owner != "snapshot"]
    assert steps == sorted(steps, key=lambda owner: owner != first), "one step after the other"
    assert "snapshot" in ending


async def test_closing_cancels_a_step_that_has_begun(bench: Bench) -> None:
    gate, began, stepped = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        gate.wait(10)

    def endless() -> Units[None]:
        while True:
            bench.clock.now += 1.0
            stepped.set()
            yield

    await bench.start()
    step = asyncio.ensure_future(bench.compute.run_units("a", endless))
    assert await asyncio.to_thread(stepped.wait, 10)
    blocked = asyncio.ensure_future(bench.compute.run("b", block))
    assert await asyncio.to_thread(began.wait, 10)
    bench.compute.close()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(step, 10)
    gate.set()
    await asyncio.wait_for(blocked, 10)


async def test_cancelled_work_never_starts(bench: Bench) -> None:
    calls = [bench.call("a", 3), bench.call("b", 3)]
    await asyncio.sleep(0)
    bench.compute.cancel_waiting()
    await bench.start()
    for call in calls:
        with pytest.raises(asyncio.CancelledError):
            await call
    await bench.compute.run(PLATFORM, int)
    assert bench.order == []


async def test_the_work_of_one_run_is_cancelled_at_the_end_of_its_unit(bench: Bench) -> None:
    ended: list[str] = []

    def step() -> Units[None]:
        try:
            for number in range(5):
                if number == 2:
                    bench.compute.cancel("a")
                bench.order.append("a")
                yield
        finally:
            ended.append(threading.current_thread().name)

    calls = [asyncio.ensure_future(bench.compute.run_units("a", step)), bench.call("a", 2), bench.call("b", 5)]
    await bench.start()
    for call in calls[:2]:
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await calls[2] == "b"
    assert bench.order.count("a") == 3
    assert len(ended) == 1
    assert ended[0].startswith("compute"), "what a step holds is released on the thread of the device"
    assert await bench.call("a", 1) == "a", "later work is not cancelled"


async def test_cancelled_work_that_fails_while_it_ends_holds_up_no_later_work(bench: Bench) -> None:
    def step() -> Units[None]:
        try:
            bench.compute.cancel("a")
            yield
        finally:
            raise RuntimeError("the device is lost")

    failing = asyncio.ensure_future(bench.compute.run_units("a", step))
    await bench.start()
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="the device is lost"):
            await failing
        assert await bench.call("a", 1) == "a"


async def test_the_owner_of_each_unit_is_announced_before_it_starts() -> None:
    events: list[str] = []

    def step(owner: str) -> Units[None]:
        for _ in range(2):
            events.append(f"unit of {owner}")
            yield

    compute, gate = Compute(on_owner=lambda owner: events.append(f"owner {owner}")), threading.Event()
    begun = asyncio.ensure_future(compute.run("a", gate.wait))
    calls = [asyncio.ensure_future(compute.run_units(owner, step, owner)) for owner in ("b", "c")]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(begun, *calls)
    await compute.run(PLATFORM, int)
    compute.close()
    assert events[0] == "owner a"
    for number, event in enumerate(events):
        if event.startswith("unit of "):
            assert events[number - 1] == event.replace("unit of", "owner")
    assert events.count("owner ") >= 2, "idle, and work of the platform"
    assert "owner " in events[events.index("owner c") :][-2:]


async def test_seconds_of_all_owners_are_the_busy_time(bench: Bench) -> None:
    def failing() -> None:
        bench.clock.now += 4.0
        raise ValueError("no")

    def spend() -> None:
        bench.clock.now += 0.25

    calls = [bench.call("one", 5, 1.5), bench.call("two", 3, 2.0), bench.save("one", spend), bench.save("two", failing)]
    await bench.start()
    await asyncio.gather(*calls, return_exceptions=True)
    await bench.compute.run(PLATFORM, spend)
    used = {owner: bench.compute.seconds_of(owner) for owner in ("one", "two", PLATFORM, "other")}
    assert used == {"one": 7.75, "two": 10.0, PLATFORM: 0.25, "other": 0.0}
    assert sum(used.values()) == bench.clock.now
    bench.compute.forget("one")
    assert bench.compute.seconds_of("one") == 0.0
    assert bench.compute.seconds_of("two") == 10.0


async def test_the_time_for_which_a_run_waits_for_others_is_known(bench: Bench) -> None:
    held: list[tuple[float, float]] = []

    def note() -> None:
        held.append((bench.compute.held_seconds("one"), bench.compute.held_seconds("two")))

    def spend() -> None:
        bench.clock.now += 3.0
        note()

    assert bench.compute.held_seconds("one") == 0.0
    calls = [bench.save("one", spend), bench.save("one", spend), bench.save("two", spend)]
    await bench.start()
    await asyncio.gather(*calls)
    assert held == [(0.0, 3.0), (3.0, 3.0), (3.0, 0.0)]
    note()
    assert held[-1] == (0.0, 0.0)
