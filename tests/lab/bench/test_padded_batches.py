"""Batches of the plain loop, and their padding."""

import pytest

from bench.padded_batches import in_order, padding, sorted_by_length

LENGTHS = [10, 98, 12, 90, 10, 11]


def test_batches_in_order_have_room_for_the_longest() -> None:
    assert in_order(LENGTHS, 200) == [[0, 1], [2, 3], [4, 5]]


def test_sorted_batches_put_equal_lengths_together() -> None:
    assert sorted_by_length(LENGTHS, 200) == [[1, 3], [2, 5, 0, 4]]


@pytest.mark.parametrize("batches", [in_order, sorted_by_length])
@pytest.mark.parametrize("budget", [1, 98, 200, 10_000])
def test_every_sample_is_in_one_batch_within_the_budget(batches, budget) -> None:  # type: ignore[no-untyped-def]
    found = batches(LENGTHS, budget)
    assert sorted(i for batch in found for i in batch) == list(range(len(LENGTHS)))
    assert all(len(batch) == 1 or len(batch) * max(LENGTHS[i] for i in batch) <= budget for batch in found)


def test_padding_is_the_share_of_empty_positions() -> None:
    assert padding([1, 3], [[0, 1]]) == pytest.approx(2 / 6)
    assert padding([3, 3], [[0, 1]]) == 0
    assert padding(LENGTHS, sorted_by_length(LENGTHS, 200)) < padding(LENGTHS, in_order(LENGTHS, 200))
