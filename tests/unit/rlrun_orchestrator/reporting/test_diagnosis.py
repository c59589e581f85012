"""Each thing that can be wrong with a training, from the metrics alone; and through a whole run."""

from typing import Any

import pytest
from rlrun.constants import Hint, TrainingIssue
from rlrun_orchestrator.reporting.diagnosis import DIVERSITY_STEPS, FLAT_STEPS, HISTORY, diagnose

from tests.support.run_processes import World

WELL = {
    "reward/mean": 0.5,
    "batch/zero_variance": 0.2,
    "filtered_rollouts": 0.0,
    "batch/stale_rollouts": 0.0,
    "batch/effective_batch_size": 64.0,
    "mismatch_kl/all/mean": 0.001,
    "is_masked/mean": 0.0,
    "entropy/all/mean": 1.0,
    "time/step": 20.0,
    "time/generate_completions": 10.0,
    "time/wait_for_policy": 0.0,
    "time/trainer": 10.0,
}
FAST = {"time__step": 0.1, "time__generate_completions": 0.05, "time__trainer": 0.05}
Step = dict[str, float]


def steps(count: int, **changes: float) -> list[Step]:
    return [WELL | {name.replace("__", "/"): value for name, value in changes.items()} for _ in range(count)]


def reasons(history: list[Step]) -> list[str]:
    return [problem.reason for problem in diagnose(history)]


FOUND: list[tuple[str, list[Step], list[str]]] = [
    ("well", steps(30), []),
    ("nothing yet", [], []),
    ("zero for long enough", steps(FLAT_STEPS, reward__mean=0.0), [TrainingIssue.reward_flat_at_zero]),
    ("zero, but only just", steps(FLAT_STEPS - 1, reward__mean=0.0), []),
    ("nearly zero", steps(10, reward__mean=0.009), [TrainingIssue.reward_flat_at_zero]),
    ("one rollout in fifty succeeds", steps(10, reward__mean=0.02), []),
    ("rewards below zero are no flat line", steps(10, reward__mean=-0.5), []),
    ("zero, then something", steps(10, reward__mean=0.0) + steps(1, reward__mean=0.1), []),
    ("one", steps(10, reward__mean=0.995), [TrainingIssue.reward_flat_at_one]),
    ("good, not one", steps(10, reward__mean=0.98), []),
    ("equal rewards", steps(DIVERSITY_STEPS, batch__zero_variance=1.0), [TrainingIssue.no_reward_diversity]),
    ("some groups differ", steps(5, batch__zero_variance=0.9), []),
    (
        "flat rewards are told once",
        steps(10, reward__mean=0.0, batch__zero_variance=1.0),
        [TrainingIssue.reward_flat_at_zero],
    ),
    ("nine of ten filtered", steps(5, filtered_rollouts=600.0), [TrainingIssue.most_groups_filtered]),
    ("half filtered", steps(5, filtered_rollouts=64.0), []),
    ("one in ten too old", steps(10, batch__stale_rollouts=14.0), [TrainingIssue.long_rollouts_lost]),
    ("one in thirty too old", steps(10, batch__stale_rollouts=2.0), []),
    (
        "one in thirty too old, and most have no advantage",
        steps(10, batch__stale_rollouts=2.0, batch__effective_batch_size=8.0, batch__zero_advantage_rollouts=56.0),
        [],
    ),
    (
        "one in thirty too old, and half are filtered",
        steps(10, batch__stale_rollouts=2.0, batch__effective_batch_size=32.0, filtered_rollouts=32.0),
        [],
    ),
    ("one bad step among ten", [*steps(9), *steps(1, batch__stale_rollouts=32.0)], []),
    ("collapse", steps(5, reward__mean=0.6) + steps(5, reward__mean=0.2), [TrainingIssue.reward_collapsed]),
    ("a fall from nowhere", steps(5, reward__mean=0.15) + steps(5, reward__mean=0.05), []),
    ("a dip", steps(5, reward__mean=0.6) + steps(5, reward__mean=0.4), []),
    ("ratios explode", steps(3, **{"mismatch_kl__all__mean": 0.3}), [TrainingIssue.policy_mismatch]),
    ("one bad step", [*steps(9), *steps(1, **{"mismatch_kl__all__mean": 5.0})], []),
    ("half the tokens masked", steps(3, is_masked__mean=0.5), [TrainingIssue.tokens_masked]),
    ("a few masked", steps(3, is_masked__mean=0.05), []),
    ("entropy gone", steps(10) + steps(5, **{"entropy__all__mean": 0.01}), [TrainingIssue.entropy_collapsed]),
    ("entropy low from the start", steps(15, **{"entropy__all__mean": 0.04}), []),
    ("sure of itself, and right", steps(10) + steps(5, **{"entropy__all__mean": 0.01, "reward__mean": 0.95}), []),
    (
        "stall",
        steps(10) + steps(3, time__step=200.0, time__generate_completions=190.0),
        [TrainingIssue.throughput_stalled],
    ),
    ("one slow step", steps(10) + steps(1, time__step=200.0), []),
    ("slower by half", steps(10) + steps(3, time__step=30.0), []),
    ("fast steps are not worth it", [*steps(10, **FAST), *steps(3, **FAST | {"time__step": 1.0})], []),
    ("rollout bound", steps(10, time__generate_completions=18.0, time__trainer=2.0), [Hint.rollout_bound]),
    ("trainer bound", steps(10, time__generate_completions=1.0, time__trainer=19.0), [Hint.trainer_bound]),
    (
        "waiting for the policy is waiting for the trainer",
        steps(10, time__generate_completions=16.0, time__wait_for_policy=14.0, time__trainer=4.0),
        [Hint.trainer_bound],
    ),
    ("too early for a hint", steps(9, time__generate_completions=18.0, time__trainer=2.0), []),
    ("steps without rewards (demonstrations)", [{"time/step": 1.0, "loss/mean": 1.0}] * 20, []),
]


@pytest.mark.parametrize(("history", "expected"), [(h, e) for _, h, e in FOUND], ids=[name for name, _, _ in FOUND])
def test_rules(history: list[Step], expected: list[str]) -> None:
    assert reasons(history) == expected


def test_every_trouble_and_hint_has_a_rule_and_advice() -> None:
    found = {problem.reason: problem.message for _, history, _ in FOUND for problem in diagnose(history)}
    assert found.keys() == {*TrainingIssue, *Hint}
    for message in found.values():
        assert message.endswith(".") or "faster" in message
        assert len(message) < 600, "several have to fit into one condition"


def test_flat_rewards_are_no_trouble_where_nothing_is_learnt_from_them() -> None:
    flat = steps(10, reward__mean=0.0, batch__zero_variance=1.0, **{"mismatch_kl__all__mean": 0.3})
    assert [problem.reason for problem in diagnose(flat, rewards=False)] == [TrainingIssue.policy_mismatch]


def test_a_stall_names_the_side_that_is_slow() -> None:
    slow = {"time/step": 200.0, "time/trainer": 190.0, "time/generate_completions": 10.0}
    (problem,) = diagnose([*steps(12), *[WELL | slow] * 3])
    assert "trainer" in problem.message


@pytest.mark.slow
async def test_flat_rewards_cause_a_warning_until_they_recover(world: World) -> None:
    environment = world.environments["words"]
    environment.rewards = [0.0]
    world.spec |= {"maxSteps": HISTORY, "maxAsyncLevel": 0, "oversamplingFactor": 1}
    # Otherwise no step is made while all advantages are 0.
    world.spec["algorithm"] = {"filterZeroAdvantages": False}
    seen: list[set[str]] = []
    told = world.trainer.train

    async def train(request: Any) -> Any:
        if world.trainer.step == FLAT_STEPS + 1:
            seen.append({warning["reason"] for warning in (await _status(world))["warnings"]})
            environment.rewards = [0.0, 1.0]
        if world.trainer.step == FLAT_STEPS + 5:
            seen.append({warning["reason"] for warning in (await _status(world))["warnings"]})
            world.stop.set()
        return await told(request)

    world.trainer.train = train  # type: ignore[method-assign]
    await world.start()
    assert await world.run() == 1
    before, after = seen
    assert "RewardFlatAtZero" in before
    assert "RewardFlatAtZero" not in after
    assert "NoRewardDiversity" not in after


async def _status(world: World) -> Any:
    import aiohttp

    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{world.status_port}/status") as answer:
        return await answer.json()
