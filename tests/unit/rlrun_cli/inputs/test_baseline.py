"""What a baseline says about an environment."""

import pytest
from rlrun_cli.inputs.baseline import SLOW_SECONDS, BaselineRollout, judge


def rollouts(*groups: list[float | None], seconds: float = 1.0, error: str = "") -> list[BaselineRollout]:
    return [
        BaselineRollout(number, reward, seconds, error) for number, rewards in enumerate(groups) for reward in rewards
    ]


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (rollouts([0.0, 1.0], [0.5, 0.0]), []),
        (rollouts([0.0, 0.0], [0.0, 0.0]), ["0%"]),
        (rollouts([-1.0, -1.0], [-1.0, 0.0]), ["0%"]),
        (rollouts([1.0, 0.9], [1.0, 0.7]), ["90% of the maximum reward"]),
        (rollouts([9.0, 10.0], [10.0, 9.5]), ["96% of the maximum reward"]),
        (rollouts([2.0, 10.0], [3.0, 1.0]), []),
        (rollouts([0.5, 0.5], [0.3, 0.3]), ["no spread: in 2 of 2 examples"]),
        (rollouts([1.0, 1.0], [1.0, 1.0]), ["100% of", "no spread"]),
        (rollouts([0.0, 1.0], seconds=SLOW_SECONDS + 1), ["slow: half of the rollouts take more than 61 s"]),
        (rollouts([0.0, 1.0, None], error="ValueError: x"), ["1 of 3 rollouts failed, most often: ValueError: x"]),
        (rollouts([None, None], error="x"), ["2 of 2 rollouts failed"]),
    ],
)
def test_what_keeps_a_run_from_learning_is_said(found: list[BaselineRollout], wrong: list[str]) -> None:
    remarks = [remark for remark in judge(found) if remark.hint]
    assert len(remarks) == len(wrong)
    for remark, text in zip(remarks, wrong, strict=True):
        assert text in remark.text


def test_the_rewards_are_summed_up() -> None:
    (remark,) = judge(rollouts([0.0, 1.0], [0.5, 0.5]))
    assert remark.text == (
        "mean reward 0.5 over 4 rollouts, from 0 to 1; rewards differ within 1 of 2 examples; a rollout takes 1 s"
    )
