"""Simulated runs whose rollouts take unequal times: what the scheduler's rules make of long ones. docs/design/008.

Tracker, sampler and buffer are the real ones. Time is a number: a group takes as long as its longest rollout, whose
length is lognormal (0.5) by example and again by rollout, and a step of the trainer a fixed time.
"""

import heapq
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from rlrun.protocol.policy import PolicyRef
from rlrun_orchestrator.data.example_buffer import BufferSettings, Example, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample
from rlrun_orchestrator.data.groups import Group, GroupState
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.rollouts.group_scheduler import SchedulingLimits
from rlrun_orchestrator.rollouts.group_tracker import GroupTracker

from tests.support.ended_groups import rollout

STEPS = 400
BATCH_SIZE = 128
ROLLOUTS = 8
EXAMPLES = 500
SPREAD = 0.5
TRAINER_SECONDS = 0.3
"""Seconds of a step, where the mean rollout takes about 1.3."""


@dataclass
class Outcome:
    """Counts of a simulated run."""

    seconds_per_step: float = 0.0
    trained: Counter[Example] = field(default_factory=Counter)
    trained_seconds: float = 0.0
    """Sum of the durations of the groups that were trained on."""
    stale: int = 0
    drawn: int = 0
    """Groups that were started."""
    ages: list[int] = field(default_factory=list)

    @property
    def stale_share(self) -> float:
        return self.stale / (self.stale + self.trained.total())

    def share_of(self, environment: str) -> float:
        of_environment = (count for example, count in self.trained.items() if example.environment == environment)
        return sum(of_environment) / self.trained.total()


def length_of(example: Example, seed: int) -> float:
    """Return the median length of the example's rollouts."""
    return random.Random(f"{seed}/{example}").lognormvariate(0, SPREAD)


def simulate(
    limits: SchedulingLimits, slowness: Mapping[str, float], seed: int, *, steps: int = STEPS, redraws: bool = True
) -> Outcome:
    """Run all steps. `slowness`: factor on the lengths of each environment's rollouts."""
    outcome, tracker = Outcome(), GroupTracker(limits, RunSchedule(steps))
    sampler = ExampleSampler(ExampleBuffer(dict.fromkeys(slowness, EXAMPLES), None, BufferSettings(seed=seed)))
    lengths = random.Random(seed)
    events: list[tuple[float, int, Group | None]] = []
    """(time, tie break, group that returns); None: the trainer has made its step."""
    seconds: dict[str, float] = {}
    now, number = 0.0, 0

    def publish() -> None:
        tracker.publish(PolicyRef(version=tracker.step, digest="0123456789abcdef", uri="s3://bucket/policy"))

    def seconds_of(sampled: SampledExample) -> float:
        scale = length_of(sampled.example, seed) * slowness[sampled.example.environment]
        return scale * max(lengths.lognormvariate(0, SPREAD) for _ in range(ROLLOUTS))

    publish()
    while tracker.step < steps or events:
        for _ in range(tracker.available_slots()):
            sampled = sampler.next_example(list(slowness))
            assert sampled is not None
            number += 1
            outcome.drawn += 1
            group = tracker.start(f"g{number}", sampled)
            seconds[group.id] = seconds_of(sampled)
            heapq.heappush(events, (now + seconds[group.id], number, group))
        if (batch := tracker.take_batch()) is not None:
            number += 1
            heapq.heappush(events, (now + TRAINER_SECONDS, number, None))
            outcome.trained.update(group.example for group in batch)
            outcome.trained_seconds += sum(seconds[group.id] for group in batch)
            outcome.ages += [tracker.step - 1 - group.version for group in batch]
            for dropped in tracker.drop_stale():
                outcome.stale += 1
                if redraws:
                    sampler.redraw(dropped.sampled)
            if tracker.step == steps:
                break
            continue
        now, _, returned = heapq.heappop(events)
        if returned is not None:
            returned.rollouts = [rollout()]
            tracker.finish(returned, GroupState.ready)
        else:
            tracker.complete_batch()
            publish()
    outcome.seconds_per_step = now / steps
    return outcome


def limits(max_off_policy_steps: int = 8) -> SchedulingLimits:
    return SchedulingLimits.from_rollouts(
        batch_size=BATCH_SIZE,
        rollouts_per_example=ROLLOUTS,
        oversampling_factor=2.0,
        max_async_level=2,
        max_off_policy_steps=max_off_policy_steps,
    )


def share_of_longest_tenth(outcome: Outcome, seed: int) -> float:
    examples = [Example("only", index) for index in range(EXAMPLES)]
    longest = sorted(examples, key=lambda example: length_of(example, seed))[-EXAMPLES // 10 :]
    return sum(outcome.trained[example] for example in longest) / outcome.trained.total()


def one_bound(slowness: Mapping[str, float], seed: int) -> Outcome:
    """Return the outcome if groups older than maxAsyncLevel were dropped, and their examples not drawn again."""
    return simulate(limits(max_off_policy_steps=2), slowness, seed, redraws=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_long_examples_get_their_share_of_training(seed: int) -> None:
    outcome, before = simulate(limits(), {"only": 1.0}, seed), one_bound({"only": 1.0}, seed)
    assert share_of_longest_tenth(outcome, seed) >= 0.09
    assert outcome.stale_share <= 0.01
    assert max(outcome.ages) <= 8
    assert outcome.seconds_per_step <= before.seconds_per_step
    assert share_of_longest_tenth(before, seed) < 0.03
    assert before.stale_share > 0.2


@pytest.mark.parametrize("steps", [5, 20])
@pytest.mark.parametrize("slowness", [{"only": 1.0}, {"fast": 1.0, "slow": 4.0}])
def test_a_run_draws_little_more_than_it_trains_on(slowness: dict[str, float], steps: int) -> None:
    """The last steps start no groups that they cannot use, so only lost groups are drawn in vain."""
    for seed in range(3):
        outcome = simulate(limits(), slowness, seed, steps=steps)
        assert outcome.trained.total() == steps * BATCH_SIZE // ROLLOUTS
        assert outcome.drawn <= 1.2 * outcome.trained.total()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_environment_gets_its_share_of_training(seed: int) -> None:
    slowness = {"fast": 1.0, "slow": 4.0}
    outcome, before = simulate(limits(), slowness, seed), one_bound(slowness, seed)
    assert outcome.share_of("slow") == pytest.approx(0.5, abs=0.03)
    assert before.share_of("slow") < 0.35
    # A step has more of the slow rollouts, and takes longer by less than they do.
    assert outcome.seconds_per_step <= 1.06 * before.seconds_per_step
    assert outcome.trained_seconds / outcome.seconds_per_step >= 1.7 * before.trained_seconds / before.seconds_per_step
