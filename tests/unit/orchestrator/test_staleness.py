"""Properties of the scheduler for any order of events: docs/design/008-staleness.md in code."""

import copy
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rlrun_orchestrator.scheduler import Scheduler, SchedulerSettings, Verdict

MAX_STEPS = 12


class Run(RuleBasedStateMachine):
    """A model of the run beside the scheduler: what was dispatched with which version, and what became of it."""

    @initialize(
        level=st.integers(0, 3), groups=st.integers(1, 3), factor=st.sampled_from([1, 2, 3]), first=st.integers(0, 2)
    )
    def begin(self, level: int, groups: int, factor: int, first: int) -> None:
        # The schema's rule: without asynchrony there is no oversampling.
        factor = 1 if level == 0 else factor
        self.settings = SchedulerSettings(groups, groups * factor, level, MAX_STEPS, first)
        self.s = Scheduler(self.settings)
        self.version: dict[str, int] = {}
        self.fate: dict[str, str] = {}
        self.flying: list[str] = []
        self.batch: list[str] = []
        self.s.published(0)

    def end(self, groups: list[str], fate: str) -> None:
        for group in groups:
            assert group not in self.fate, f"{group} was {self.fate[group]} before it was {fate}"
            self.fate[group] = fate
            if group in self.flying:
                self.flying.remove(group)

    @precondition(lambda self: self.s.room() > 0)
    @rule(count=st.integers(1, 6))
    def start(self, count: int) -> None:
        for _ in range(min(count, self.s.room())):
            name = f"g{len(self.version)}"
            self.version[name] = self.s.dispatched(name, len(self.version))
            self.flying.append(name)

    @precondition(lambda self: bool(self.flying))
    @rule(which=st.randoms(use_true_random=False), verdict=st.sampled_from([*Verdict, Verdict.usable]))
    def finish(self, which: random.Random, verdict: Verdict) -> None:
        group = which.choice(self.flying)
        self.flying.remove(group)
        stale = self.s.stale
        assert self.s.finished(group, verdict)
        if verdict is not Verdict.usable:
            self.fate[group] = verdict.value
        elif self.s.stale > stale:
            self.fate[group] = "stale"
        assert not self.s.finished(group, verdict), "a result that comes twice counts once"

    @precondition(lambda self: self.s.step >= self.settings.first_step)
    @rule()
    def take(self) -> None:
        step, ready = self.s.step, dict(self.s.ready)
        batch = self.s.take_batch()
        if batch is None:
            return
        assert len(batch) == self.settings.groups_per_batch
        for group in batch:
            lag = step - self.version[group]
            assert 0 <= lag <= self.settings.max_async_level, "the bound"
            assert self.settings.max_async_level > 0 or lag == 0, "strictly on-policy"
        self.batch = batch
        gone = self.s.expire()
        for group in set(ready) - set(batch):
            fresh = self.s.step - self.version[group] <= self.settings.max_async_level
            assert fresh == (group in self.s.ready), "surplus stays while it is fresh enough, and no longer"
        self.end(gone, "stale")

    @precondition(lambda self: bool(self.batch))
    @rule()
    def train(self) -> None:
        self.s.batch_trained()
        self.end(self.batch, "trained")
        self.batch = []

    @precondition(lambda self: not self.batch and self.settings.first_step <= self.s.step < MAX_STEPS)
    @rule(slow=st.integers(0, 2))
    def make_a_step(self, slow: int) -> None:
        """All goes well, but for the `slow` oldest groups, which are still under way: how groups grow old."""
        self.publish()
        while self.s.room():
            self.start(1)
        for group in self.flying[slow:]:
            self.flying.remove(group)
            assert self.s.finished(group, Verdict.usable)
        self.take()
        if self.batch:
            self.train()

    @precondition(lambda self: self.s.step < self.settings.first_step)
    @rule()
    def train_on_demonstrations(self) -> None:
        assert not self.version or self.s.counts().in_flight == 0
        self.s.stepped(self.s.step + 1)

    @rule()
    def publish(self) -> None:
        self.s.published(self.s.step - (1 if self.batch else 0))

    @rule(kind=st.sampled_from(["rewind", "restart", "close"]), back=st.integers(0, 3))
    def trouble(self, kind: str, back: int) -> None:
        """One rule for all of it, so that there is more life than death."""
        match kind:
            case "rewind":
                self.rewind(back)
            case "restart":
                self.restart()
            case _:
                self.close()

    def rewind(self, back: int) -> None:
        step = max(0, self.s.step - 1 - back)
        self.end(self.s.rewind(step), "stale")
        self.batch = []
        for group in [*self.s.in_flight, *self.s.ready]:
            assert self.version[group] <= step, "what belongs to a policy that is no more is gone"

    def restart(self) -> None:
        """The orchestrator dies: the next one knows the counts, and nothing that was under way comes back."""
        c = self.s.counts()
        step = self.s.step - (1 if self.batch else 0)
        self.end([group for group in self.version if group not in self.fate], "stale")
        self.batch, self.flying = [], []
        self.s = Scheduler(
            self.settings, trained=c.trained, filtered=c.filtered, errored=c.errored, stale=c.stale + c.in_flight
        )
        self.s.rewind(step)
        self.s.published(step)

    def close(self) -> None:
        before = set(self.batch)
        self.end(self.s.close(), "stale")
        assert {group for group in self.version if group not in self.fate} == before

    @invariant()
    def every_group_has_one_fate_and_the_counters_say_which(self) -> None:
        if not hasattr(self, "s"):
            return
        c, fates = self.s.counts(), Counter(self.fate.values())
        assert (c.trained, c.filtered, c.errored, c.stale) == tuple(
            fates[fate] for fate in ("trained", "filtered", "errored", "stale")
        )
        assert c.in_flight == len(self.version) - len(self.fate)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "s"):
            return
        lags = [self.s.step - place.version for place in (self.s.in_flight | self.s.ready).values()]
        assert all(0 <= lag <= self.settings.max_async_level for lag in lags), "what is too old is gone"
        assert len(self.s.in_flight) <= self.settings.max_groups_in_flight
        assert self.s.room() >= 0

    @invariant()
    def a_batch_is_always_possible(self) -> None:
        """From here on everything succeeds: the run reaches its end, without waiting for anything else."""
        if not hasattr(self, "s"):
            return
        s, number = copy.deepcopy(self.s), 0
        s.batch_trained()
        while s.step < MAX_STEPS:
            if s.step < self.settings.first_step:
                s.stepped(s.step + 1)
                continue
            s.published(s.step)
            for _ in range(MAX_STEPS * self.settings.max_groups_in_flight):
                for _ in range(s.room()):
                    s.dispatched(f"later{number}", 10_000 + number)
                    number += 1
                if not s.in_flight:
                    break
                s.finished(next(iter(s.in_flight)), Verdict.usable)
            assert s.take_batch() is not None, f"stands still at step {s.step}"
            s.expire()
            s.batch_trained()


@pytest.mark.slow
@pytest.mark.proves("maxAsyncLevel", "oversamplingFactor")
def test_staleness_accounting_and_progress_hold_for_any_order_of_events() -> None:
    run_state_machine_as_test(Run, settings=settings(max_examples=80, stateful_step_count=50, deadline=None))


@given(
    level=st.integers(0, 4), groups=st.integers(1, 5), factor=st.sampled_from([1.0, 1.5, 2.0, 3.0]), seed=st.randoms()
)
@settings(max_examples=60, deadline=None)
def test_without_failures_nothing_is_ever_wasted(level: int, groups: int, factor: float, seed: random.Random) -> None:
    """Groups that all come back while their step is open are all trained, whatever the order they come back in."""
    s = Scheduler(
        SchedulerSettings.of(
            batch_size=groups * 8,
            rollouts_per_example=8,
            oversampling_factor=factor,
            max_async_level=level,
            max_steps=8,
        )
    )
    s.published(0)
    number = 0
    while s.step < 8 or s.taken:
        for _ in range(s.room()):
            s.dispatched(f"g{number}", number)
            number += 1
        flying = list(s.in_flight)
        seed.shuffle(flying)
        oldest = min((place.version for place in s.in_flight.values()), default=0)
        # The oldest version comes back first, as it was started first; inside a version any order.
        flying.sort(key=lambda group: s.in_flight[group].version > oldest)
        for group in flying:
            s.finished(group, Verdict.usable)
        assert s.take_batch() is not None, "the run never stands still"
        s.expire()
        s.batch_trained()
        s.published(s.step)
    assert s.counts().stale == 0
    assert s.counts().trained == 8 * groups == number
