"""Groups of rollouts in any state, for tests of what becomes of them."""

from array import array
from typing import Any

from rlrun.protocol.environment import ExampleContent, RolloutResult
from rlrun.protocol.problem import Problem
from rlrun.storage.samples.record import SampleSplit
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.example_sampler import SampledExample
from rlrun_orchestrator.data.groups import Group, GroupState, Rollout, VersionSpan
from rlrun_orchestrator.data.trajectories import SampledSpan, TokenSequence, Trajectory
from rlrun_orchestrator.rollouts.group_tracker import GroupTracker
from rlrun_orchestrator.storage.sample_records import StepRollouts


def rollout(number: int = 0, **values: Any) -> Rollout:
    """A rollout of one turn with a prompt of two tokens and an answer of three."""
    result = RolloutResult(
        **{
            "rollout_id": f"r{number}",
            "reward": float(number),
            "completion": [{"role": "assistant", "content": "olleh"}],
            **values,
        }
    )
    sequence = TokenSequence(array("i", range(1, 6)), array("f", [0.0, 0.0, -0.5, -1.0, -6.0]), [SampledSpan(2, 5, 2)])
    return Rollout(result, Trajectory([sequence], 0), turns=1, truncated=False, advantage=number - 0.5)


def group(number: int = 0, state: GroupState = GroupState.trained, rollouts: int = 2) -> Group:
    """A group of the policy of step 2."""
    content = ExampleContent(prompt=[{"role": "user", "content": "reverse: hello"}], answer="olleh", info={"mail": "m"})
    return Group(
        f"g{number}",
        SampledExample(number, Example("reverse", 7 + number)),
        VersionSpan(2),
        state,
        [rollout(n) for n in range(rollouts)],
        seconds=0.5,
        content=content,
    )


def step_rollouts(step: int, groups: int = 1) -> StepRollouts:
    """Groups that a step was trained on."""
    return StepRollouts(step, SampleSplit.train, [group(number) for number in range(groups)])


def finish(
    tracker: GroupTracker,
    group: Group | str,
    state: GroupState = GroupState.ready,
    valid: int = 1,
    size: int | None = None,
    *,
    left_out: bool = False,
) -> Group:
    """End the flight of a group, or of the one with this id, with `size` rollouts, of which `valid` did not fail."""
    found = tracker._groups[group] if isinstance(group, str) else group
    found.rollouts = [rollout(number) for number in range(size or valid)]
    for number, each in enumerate(found.rollouts):
        each.left_out = left_out
        if number >= valid:
            each.error = Problem(reason="RolloutTimeout", message="m")
    assert tracker.finish(found, state)
    return found
