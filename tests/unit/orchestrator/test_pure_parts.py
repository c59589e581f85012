import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.schema.trajectory import TrajectoryStrategy
from rlrun.schema.wire import GroupResult, Problem, RolloutResult
from rlrun_orchestrator.advantages import group_advantages, judge
from rlrun_orchestrator.backoff import Backoff
from rlrun_orchestrator.batching import rollout_lines, training_samples
from rlrun_orchestrator.board import Board
from rlrun_orchestrator.buffer import Buffer, BufferSettings, Example
from rlrun_orchestrator.metrics import batch_metrics
from rlrun_orchestrator.rollouts import Group, Scoring, score
from rlrun_orchestrator.scheduler import Verdict
from rlrun_orchestrator.settings import Settings
from rlrun_orchestrator.trajectories import Turn, build_trajectory

INTERLEAVED, BRANCHING = TrajectoryStrategy.interleaved, TrajectoryStrategy.branching


# --- advantages -------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_advantages_sum_to_zero_and_keep_the_differences(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert math.isclose(math.fsum(advantages), 0.0, abs_tol=1e-9)
    assert math.isclose(advantages[0] - advantages[-1], rewards[0] - rewards[-1], abs_tol=1e-9)


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, math.nan])


@pytest.mark.parametrize(
    ("rewards", "filtering", "verdict"),
    [
        ([1.0, 0.0], True, Verdict.usable),
        ([1.0, 1.0], True, Verdict.filtered),
        ([0.0, 0.0], True, Verdict.filtered),
        ([0.5, 0.5], True, Verdict.usable),
        ([1.0, 1.0], False, Verdict.usable),
        ([1.0], False, Verdict.errored),
        ([], True, Verdict.errored),
    ],
)
def test_verdicts(rewards: list[float], filtering: bool, verdict: Verdict) -> None:
    assert judge(rewards, rollouts_per_example=2, online_filtering=filtering) is verdict


# --- trajectories -----------------------------------------------------------------------------------------------------


def turn(prompt: list[int], completion: list[int]) -> Turn:
    return Turn(prompt, completion, [-0.5 - t for t in completion], "stop")


def test_turns_that_continue_exactly_become_one_sequence() -> None:
    built = build_trajectory([turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6])], INTERLEAVED, 100)
    assert built.prefix_breaks == 0
    (sequence,) = built.sequences
    assert sequence.token_ids == [1, 2, 3, 4, 5, 6]
    assert sequence.loss_mask == [False, False, True, True, False, True]
    assert sequence.logprobs == [0.0, 0.0, -3.5, -4.5, 0.0, -6.5]


def test_a_broken_prefix_opens_a_new_sequence_and_is_counted() -> None:
    built = build_trajectory([turn([1, 2], [3, 4]), turn([1, 2, 9, 4, 5], [6])], INTERLEAVED, 100)
    assert built.prefix_breaks == 1
    assert [s.token_ids for s in built.sequences] == [[1, 2, 3, 4], [1, 2, 9, 4, 5, 6]]
    assert built.sequences[1].loss_mask == [False] * 5 + [True]


def test_branching_trains_on_every_turn_by_itself() -> None:
    built = build_trajectory([turn([1], [2]), turn([1, 2, 3], [4])], BRANCHING, 100)
    assert [s.token_ids for s in built.sequences] == [[1, 2], [1, 2, 3, 4]]
    assert built.prefix_breaks == 0


def test_a_sequence_is_cut_at_seq_len_and_dropped_without_drawn_tokens() -> None:
    assert build_trajectory([turn([1, 2, 3], [4, 5])], INTERLEAVED, 4).sequences[0].token_ids == [1, 2, 3, 4]
    assert build_trajectory([turn([1, 2, 3], [4])], INTERLEAVED, 3).sequences == []


tokens = st.lists(st.integers(0, 3), max_size=4)


@given(st.lists(st.tuples(tokens, tokens), max_size=5), st.sampled_from([INTERLEAVED, BRANCHING]))
def test_every_trained_token_was_drawn_after_exactly_the_tokens_before_it(
    raw: list[tuple[list[int], list[int]]], strategy: TrajectoryStrategy
) -> None:
    turns = [turn(prompt, completion) for prompt, completion in raw]
    seen = {tuple(t.prompt_ids + t.completion_ids[: i + 1]) for t in turns for i in range(len(t.completion_ids))}
    built = build_trajectory(turns, strategy, 1000)
    trained = 0
    for sequence in built.sequences:
        assert len(sequence.token_ids) == len(sequence.loss_mask) == len(sequence.logprobs)
        for i, drawn in enumerate(sequence.loss_mask):
            if drawn:
                trained += 1
                assert tuple(sequence.token_ids[: i + 1]) in seen
    assert trained == sum(len(t.completion_ids) for t in turns)


# --- groups -----------------------------------------------------------------------------------------------------------


def scored(outcomes: list[RolloutResult], recorded: dict[str, list[Turn]]) -> Group:
    scoring = Scoring(rollouts_per_example=len(outcomes), strategy=INTERLEAVED, seq_len=64, online_filtering=False)
    result = GroupResult(group_id="g", rollouts=outcomes, seconds=1.0)
    return score(result, lambda rollout: recorded.get(rollout, []), Example("env", 3), 7, scoring)


def test_a_group_becomes_samples_with_advantages_and_errors_stay_out() -> None:
    turns = {f"r{i}": [turn([1], [2, 3])] for i in range(4)}
    failed = Problem(reason="RewardFunctionError", message="boom")
    group = scored(
        [
            RolloutResult(rollout_id="r0", reward=1.0, metrics={"acc": 1.0}),
            RolloutResult(rollout_id="r1", reward=0.0),
            RolloutResult(rollout_id="r2", reward=0.0, error=failed),
            RolloutResult(rollout_id="made-up", reward=1.0),
        ],
        turns,
    )
    assert group.verdict is Verdict.usable
    assert [r.error.reason if r.error else None for r in group.rollouts] == [
        None,
        None,
        "RewardFunctionError",
        "RolloutNotRecorded",
    ]
    samples = training_samples([group])
    assert [s["advantage"] for s in samples] == [0.5, -0.5]
    assert {s["policyVersion"] for s in samples} == {7}
    values = batch_metrics([group], 9, 4)
    assert values["reward/mean"] == 0.5
    assert values["error/mean"] == 0.5
    assert values["batch/off_policy_level/mean"] == 2.0
    assert values["seq_len/mean"] == 3.0
    assert values["metrics/acc/mean"] == 1.0
    assert len(rollout_lines([group], 10)) == 4


def test_one_recorded_rollout_cannot_be_claimed_twice() -> None:
    outcomes = [RolloutResult(rollout_id="r0", reward=1.0)] * 3
    group = scored(outcomes, {"r0": [turn([1], [2])]})
    assert group.verdict is Verdict.errored
    assert len(group.good) == 1


# --- buffer -----------------------------------------------------------------------------------------------------------


def test_an_epoch_draws_every_example_once_and_the_next_in_another_order() -> None:
    buffer = Buffer({"a": 20}, None, BufferSettings(seed=1))
    epochs = [[buffer.draw().index for _ in range(20)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]


def test_environments_are_drawn_by_weight() -> None:
    buffer = Buffer({"a": 5, "b": 5}, [3.0, 1.0], BufferSettings(seed=1))
    drawn = [buffer.draw().environment for _ in range(2000)]
    assert 0.7 < drawn.count("a") / 2000 < 0.8
    assert all(buffer.draw(["b"]).environment == "b" for _ in range(5))


def test_easy_and_hard_examples_leave_the_draw_and_come_back_when_nothing_else_is_left() -> None:
    buffer = Buffer({"a": 3}, None, BufferSettings(seed=1, filtering=True))
    buffer.scored(Example("a", 0), 0.9)
    buffer.scored(Example("a", 1), 0.1)
    assert {buffer.draw().index for _ in range(6)} == {2}
    buffer.scored(Example("a", 2), 0.95)
    assert {buffer.draw().index for _ in range(6)} == {1}, "the hard one comes back first"
    buffer.scored(Example("a", 1), 0.95)
    assert {buffer.draw().index for _ in range(6)} == {0, 1, 2}


def test_without_filtering_nothing_leaves_the_draw() -> None:
    buffer = Buffer({"a": 2}, None, BufferSettings(seed=1))
    buffer.scored(Example("a", 0), 1.0)
    assert {buffer.draw().index for _ in range(4)} == {0, 1}


def test_a_share_of_the_easy_examples_may_stay() -> None:
    buffer = Buffer({"a": 1000}, None, BufferSettings(seed=1, filtering=True, easy_fraction=0.3))
    for index in range(1000):
        buffer.scored(Example("a", index), 1.0)
    assert 0.25 < buffer.metrics()["pool/normal"] < 0.35


@given(st.integers(0, 60), st.integers(0, 5))
def test_a_restored_buffer_goes_on_with_the_same_examples(before: int, seed: int) -> None:
    settings = BufferSettings(seed=seed, filtering=True)
    one = Buffer({"a": 7, "b": 11}, [1.0, 2.0], settings)
    for number in range(before):
        one.scored(one.draw(), (number % 10) / 10)
    two = Buffer({"a": 7, "b": 11}, [1.0, 2.0], settings)
    two.restore(one.state())
    assert [two.draw() for _ in range(30)] == [one.draw() for _ in range(30)]


@pytest.mark.parametrize(
    ("sizes", "weights"), [({"a": 0}, None), ({}, None), ({"a": 1}, [1.0, 1.0]), ({"a": 1}, [0.0])]
)
def test_a_buffer_with_nothing_to_draw_is_refused(sizes: dict[str, int], weights: list[float] | None) -> None:
    with pytest.raises(ValueError, match=r"environment"):
        Buffer(sizes, weights, BufferSettings())


# --- backoff, settings, board -----------------------------------------------------------------------------------------


def test_failures_that_began_before_the_pause_say_nothing_new() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    for _ in range(30):
        backoff.failed(now=10.0, started=5.0)
    assert backoff.pause == 1.0
    backoff.failed(now=12.0, started=11.0)
    assert backoff.pause == 2.0
    assert not backoff.open(13.9)
    assert backoff.open(14.0)
    for now in range(100, 120):
        backoff.failed(float(now), float(now))
    assert backoff.pause == 8.0
    backoff.succeeded()
    assert backoff.open(0.0)


def test_settings_come_from_variables_and_bad_ones_name_themselves() -> None:
    settings = Settings.from_environment({"RLRUN_GATEWAY_PORT": "9000", "RLRUN_STEP_DEADLINE": "1.5"})
    assert (settings.gateway_port, settings.step_deadline) == (9000, 1.5)
    with pytest.raises(ValueError, match="RLRUN_GATEWAY_PORT"):
        Settings.from_environment({"RLRUN_GATEWAY_PORT": "many"})


def test_a_termination_message_always_fits() -> None:
    board = Board(10)
    for number in range(20):
        board.warn(Problem(reason=f"Warning{number}", message="x" * 500))
    board.failed(Problem(reason="EmptyBatches", message="y" * 5000))
    text = board.termination_message()
    assert len(text) <= 4096
    assert b"EmptyBatches" in text
    assert len(board.status().warnings) == 20


def test_the_board_survives_a_restart_and_a_rewind() -> None:
    board = Board(10)
    board.reward_errors = 3
    board.mismatch(0.5, 10)
    board.mismatch(0.1, 30)
    for step in range(1, 6):
        board.rewards.append((step, step / 10))
    other = Board(10)
    other.restore(board.state())
    other.rewound(3)
    assert other.status().reward == 0.3
    assert other.reward_errors == 3
    assert other.mismatch_kl == pytest.approx(0.2)
