import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rlrun_orchestrator.scheduler import Scheduler, SchedulerSettings, Verdict


def scheduler(groups: int = 4, factor: float = 2.0, level: int = 2, max_steps: int = 100) -> Scheduler:
    return Scheduler(
        SchedulerSettings.of(
            batch_size=groups * 8,
            rollouts_per_example=8,
            oversampling_factor=factor,
            max_async_level=level,
            max_steps=max_steps,
        )
    )


def dispatch(s: Scheduler) -> list[str]:
    started = [f"g{s.step}-{s.version}-{s.counts().in_flight + i}" for i in range(s.room())]
    for group in started:
        s.dispatched(group)
    return started


def test_groups_in_flight_are_the_oversampled_batch_rounded_up() -> None:
    s = SchedulerSettings.of(
        batch_size=24, rollouts_per_example=8, oversampling_factor=1.5, max_async_level=2, max_steps=9
    )
    assert s.groups_per_batch == 3
    assert s.max_groups_in_flight == 5


def test_nothing_starts_without_a_policy() -> None:
    assert scheduler().room() == 0


def test_level_zero_starts_one_batch_per_version() -> None:
    s = scheduler(level=0, factor=1.0)
    s.published(0)
    assert s.room() == 4
    for group in dispatch(s):
        s.finished(group, Verdict.usable)
    assert s.room() == 0
    assert len(s.take_batch() or []) == 4
    assert s.room() == 0, "step 1 may only be trained on version 1"
    s.batch_trained()
    s.published(1)
    assert s.room() == 4
    assert s.counts().stale == 0


def test_a_lost_group_is_replaced_on_policy() -> None:
    s = scheduler(level=0, factor=1.0)
    s.published(0)
    first = dispatch(s)[0]
    s.finished(first, Verdict.errored)
    assert s.room() == 1


def test_generation_goes_on_while_the_trainer_works() -> None:
    s = scheduler(level=2)
    s.published(0)
    for group in dispatch(s)[:4]:
        s.finished(group, Verdict.usable)
    assert s.take_batch()
    assert s.room() == 4, "two batches may be under way for steps 1 and 2, one is in flight already"


def test_the_oldest_version_is_trained_first() -> None:
    s = scheduler(groups=1, factor=2.0, level=2)
    s.published(0)
    s.dispatched("old")
    s.published(1)
    s.dispatched("new")
    s.finished("new", Verdict.usable)
    s.finished("old", Verdict.usable)
    assert s.take_batch() == ["old"]


def test_what_a_step_makes_too_old_is_dropped_and_counted() -> None:
    s = scheduler(groups=1, factor=2.0, level=1)
    s.published(0)
    for name in ("a", "b", "c"):
        s.dispatched(name)
    s.finished("a", Verdict.usable)
    s.take_batch()
    s.batch_trained()
    assert s.expire() == [], "b and c may still be trained at step 1"
    s.finished("b", Verdict.usable)
    s.take_batch()
    assert s.expire() == ["c"]
    assert not s.finished("c", Verdict.usable), "its result comes too late and is not counted twice"
    assert s.counts().stale == 1


def test_no_group_starts_that_no_remaining_step_can_use() -> None:
    s = scheduler(groups=4, level=2, max_steps=1)
    s.published(0)
    assert s.room() == 4


def test_after_a_rewind_groups_of_the_future_are_gone_and_older_ones_stay() -> None:
    s = scheduler(groups=1, factor=4.0, level=4)
    s.step = 5
    s.published(4)
    s.dispatched("common")
    s.published(5)
    s.dispatched("future")
    s.finished("future", Verdict.usable)
    s.dispatched("taken")
    s.finished("taken", Verdict.usable)
    s.take_batch()
    assert sorted(s.rewind(4)) == ["future", "taken"]
    assert list(s.in_flight) == ["common"]
    assert (s.version, s.step) == (None, 4)


class Run(RuleBasedStateMachine):
    """Any order of events: each group ends once, and nothing is trained on that is older than allowed."""

    groups = Bundle("groups")

    def __init__(self) -> None:
        super().__init__()
        self.s = scheduler(groups=2, factor=2.0, level=2, max_steps=12)
        self.number = 0
        self.policy = 0
        self.version_of: dict[str, int] = {}
        self.trainer = 0
        self.s.published(0)

    @precondition(lambda self: self.s.room() > 0)
    @rule(target=groups)
    def start(self) -> str:
        self.number += 1
        name = f"g{self.number}"
        self.version_of[name] = self.s.dispatched(name)
        return name

    @rule(group=consumes(groups), verdict=st.sampled_from(Verdict))
    def finish(self, group: str, verdict: Verdict) -> None:
        self.s.finished(group, verdict)

    @rule()
    def take(self) -> None:
        step = self.s.step
        batch = self.s.take_batch()
        if batch is None:
            return
        assert len(batch) == 2
        for group in batch:
            assert 0 <= step - self.version_of[group] <= 2
        self.s.expire()

    @precondition(lambda self: bool(self.s.taken))
    @rule()
    def train(self) -> None:
        self.s.batch_trained()

    @rule()
    def publish(self) -> None:
        trained = self.s.step - (1 if self.s.taken else 0)
        self.s.published(trained)

    @rule(back=st.integers(0, 3))
    def rewind(self, back: int) -> None:
        self.s.rewind(max(0, self.s.step - 1 - back))

    @invariant()
    def every_group_is_somewhere_exactly_once(self) -> None:
        c = self.s.counts()
        assert c.trained + c.filtered + c.errored + c.stale + c.in_flight == self.number

    @invariant()
    def never_more_in_flight_than_asked_for(self) -> None:
        assert len(self.s.in_flight) <= 4
        assert self.s.room() >= 0

    def teardown(self) -> None:
        self.s.close()
        c = self.s.counts()
        assert c.in_flight == len(self.s.taken)


def test_accounting_and_staleness_hold_for_any_order_of_events() -> None:
    run_state_machine_as_test(Run, settings=settings(max_examples=60, stateful_step_count=60, deadline=None))


@given(
    level=st.integers(0, 4), groups=st.integers(1, 5), factor=st.sampled_from([1.0, 1.5, 2.0, 3.0]), seed=st.randoms()
)
@settings(max_examples=60, deadline=None)
def test_without_failures_nothing_is_ever_wasted(level: int, groups: int, factor: float, seed: random.Random) -> None:
    """Groups that all come back while their step is open are all trained, whatever the order they come back in."""
    s = scheduler(groups=groups, factor=factor, level=level, max_steps=8)
    s.published(0)
    number = 0
    while s.step < 8 or s.taken:
        for _ in range(s.room()):
            s.dispatched(f"g{number}")
            number += 1
        flying = list(s.in_flight)
        seed.shuffle(flying)
        oldest = min(s.in_flight.values(), default=0)
        # The oldest version comes back first, as it was started first; inside a version any order.
        for group in [g for g in flying if s.in_flight[g] == oldest] + [g for g in flying if s.in_flight[g] > oldest]:
            s.finished(group, Verdict.usable)
        assert s.take_batch() is not None, "the run never stands still"
        s.expire()
        s.batch_trained()
        s.published(s.step)
    assert s.counts().stale == 0
    assert s.counts().trained == 8 * groups == number
