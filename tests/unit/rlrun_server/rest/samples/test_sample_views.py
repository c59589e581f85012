"""Ids in paths and distributions of rewards."""

import sys
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st
from rlrun_server.rest.samples.sample_views import PATH_SEGMENT, addresses, histogram, mean_of


@given(st.lists(st.text(max_size=4) | st.sampled_from(["a", "~a", ".."])))
def test_each_id_for_paths_is_another_one(own: list[str]) -> None:
    found = addresses([(text, f"file:{number}") for number, text in enumerate(own)])
    assert len(set(found)) == len(own)
    for id, text in zip(found, own, strict=True):
        assert PATH_SEGMENT.fullmatch(id) or id.startswith("~")
        assert id == text or own.count(text) > 1 or not PATH_SEGMENT.fullmatch(text)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50), st.integers(1, 20))
def test_each_reward_is_in_one_bin(rewards: list[float], count: int) -> None:
    bins = histogram(rewards, count)
    assert sum(b.count for b in bins) == len(rewards)
    assert len(bins) <= count
    for n, found in enumerate(bins):
        last = n == len(bins) - 1
        assert found.count == sum(found.min <= r < found.max or (last and r == found.max) for r in rewards)


def test_bins_are_equally_wide() -> None:
    assert [(b.min, b.max, b.count) for b in histogram([0.0, 1.0, 2.0, 4.0], 4)] == [
        (0.0, 1.0, 1), (1.0, 2.0, 1), (2.0, 3.0, 1), (3.0, 4.0, 1),
    ]  # fmt: skip
    assert [(b.min, b.max, b.count) for b in histogram([1.0, 1.0], 4)] == [(1.0, 1.0, 2)]
    assert histogram([], 4) == []


def test_the_mean_of_the_largest_numbers_is_finite() -> None:
    largest = sys.float_info.max
    assert mean_of([largest, largest]) == largest
    assert mean_of([0.1, 0.2, 0.3]) == fmean([0.1, 0.2, 0.3])
    assert mean_of([]) is None
