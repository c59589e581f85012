"""Training sequences built from the turns of a rollout."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.api.run_sections.rollouts import TrajectoryStrategy
from rlrun_orchestrator.data.trajectories import Turn, build_trajectory

INTERLEAVED, BRANCHING = TrajectoryStrategy.interleaved, TrajectoryStrategy.branching


def turn(prompt: Sequence[int], completion: list[int]) -> Turn:
    return Turn.of(prompt, completion, [-0.5 - t for t in completion], "stop")


def test_turns_that_continue_exactly_become_one_sequence() -> None:
    built = build_trajectory([turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6])], INTERLEAVED, 100)
    assert built.prefix_breaks == 0
    (sequence,) = built.sequences
    assert list(sequence.token_ids) == [1, 2, 3, 4, 5, 6]
    assert list(sequence.loss_mask) == [0, 0, 1, 1, 0, 1]
    assert list(sequence.logprobs) == [0.0, 0.0, -3.5, -4.5, 0.0, -6.5]
    assert sequence.turn_starts == [2, 5]


def test_a_turn_without_added_tokens_keeps_its_boundary() -> None:
    turns = [turn([1, 2], [3, 4]), turn([1, 2, 3, 4], [5, 6]), turn([1, 2, 3, 4, 5, 6], []), turn([1], [7])]
    first, second = build_trajectory(turns, INTERLEAVED, 5).sequences
    assert (list(first.token_ids), first.turn_starts) == ([1, 2, 3, 4, 5], [2, 4])
    assert (list(second.token_ids), second.turn_starts) == ([1, 7], [1])
    assert build_trajectory(turns, INTERLEAVED, 4).sequences[0].turn_starts == [2]


def test_a_broken_prefix_opens_a_new_sequence_and_is_counted() -> None:
    built = build_trajectory([turn([1, 2], [3, 4]), turn([1, 2, 9, 4, 5], [6])], INTERLEAVED, 100)
    assert built.prefix_breaks == 1
    assert [list(s.token_ids) for s in built.sequences] == [[1, 2, 3, 4], [1, 2, 9, 4, 5, 6]]
    assert list(built.sequences[1].loss_mask) == [0] * 5 + [1]


def test_alternating_conversations_are_one_sequence_each() -> None:
    turns = [turn([1], [2]), turn([7], [8]), turn([1, 2, 3], [4]), turn([7, 8, 9], [6]), turn([1, 2, 3, 4], [5])]
    built = build_trajectory(turns, INTERLEAVED, 100)
    assert [list(s.token_ids) for s in built.sequences] == [[1, 2, 3, 4, 5], [7, 8, 9, 6]]
    assert built.prefix_breaks == 1


def test_a_turn_extends_the_longest_sequence_that_its_prompt_starts_with() -> None:
    turns = [turn([1], [2]), turn([1], [2, 3]), turn([1, 2, 3, 4], [5])]
    built = build_trajectory(turns, INTERLEAVED, 100)
    assert [list(s.token_ids) for s in built.sequences] == [[1, 2], [1, 2, 3, 4, 5]]
    assert [s.sampled_tokens for s in built.sequences] == [1, 3]


@pytest.mark.proves("trajectoryStrategy")
def test_branching_trains_on_every_turn_by_itself() -> None:
    built = build_trajectory([turn([1], [2]), turn([1, 2, 3], [4])], BRANCHING, 100)
    assert [list(s.token_ids) for s in built.sequences] == [[1, 2], [1, 2, 3, 4]]
    assert built.prefix_breaks == 0


def test_a_sequence_is_cut_at_seq_len_and_dropped_without_drawn_tokens() -> None:
    assert list(build_trajectory([turn([1, 2, 3], [4, 5])], INTERLEAVED, 4).sequences[0].token_ids) == [1, 2, 3, 4]
    assert build_trajectory([turn([1, 2, 3], [4])], INTERLEAVED, 3).sequences == []


class CountedSlices(array):  # type: ignore[type-arg]
    """Array that counts its slices."""

    slices = 0

    def __getitem__(self, place: Any) -> Any:
        CountedSlices.slices += isinstance(place, slice)
        return super().__getitem__(place)


def test_prompts_are_not_copied_for_sequences_that_end_otherwise() -> None:
    turns = [turn(CountedSlices("i", [1, number]), [number]) for number in range(10, 30)]
    CountedSlices.slices = 0
    built = build_trajectory([*turns, turn(CountedSlices("i", [1, 29, 29, 3]), [4])], INTERLEAVED, 100)
    assert [list(s.token_ids) for s in built.sequences][-1] == [1, 29, 29, 3, 4]
    # One for each new sequence, and two for the turn that continues.
    assert CountedSlices.slices == len(turns) + 2


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
