"""Groups of rollouts that have ended, for tests of what is stored of them."""

from typing import Any

from rlrun.protocol.environment import ExampleContent, RolloutResult
from rlrun.storage.samples.record import SampleSplit, SampleStatus
from rlrun_orchestrator.data.ended_groups import EndedGroup
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.groups import Group, GroupOutcome, Rollout
from rlrun_orchestrator.data.trajectories import TokenSequence, Trajectory
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
    sequence = TokenSequence([1, 2, 3, 4, 5], [False, False, True, True, True], [0.0, 0.0, -0.5, -1.0, -6.0])
    return Rollout(result, Trajectory([sequence], 0), turns=1, truncated=False, advantage=number - 0.5)


def group(number: int = 0, outcome: GroupOutcome = GroupOutcome.usable, rollouts: int = 2) -> Group:
    """A group of the policy of step 2."""
    content = ExampleContent(prompt=[{"role": "user", "content": "reverse: hello"}], answer="olleh", info={"mail": "m"})
    return Group(
        f"g{number}",
        Example("reverse", 7 + number),
        2,
        rollouts=[rollout(n) for n in range(rollouts)],
        outcome=outcome,
        seconds=0.5,
        ordinal=number,
        content=content,
    )


def step_rollouts(step: int, groups: int = 1) -> StepRollouts:
    """Groups that a step was trained on."""
    ended = [EndedGroup(group(number), SampleStatus.trained) for number in range(groups)]
    return StepRollouts(step, SampleSplit.train, ended)
