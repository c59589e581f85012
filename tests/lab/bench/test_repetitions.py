"""Median, spread, ratios of pairs and percentiles of repetitions."""

import pytest

from bench.repetitions import middle, paired_differences, paired_ratios, percentile, spread_of


def test_spread_has_the_ends_and_the_median() -> None:
    assert spread_of([3.0, 1.0, 10.0]) == {"count": 3, "min": 1.0, "median": 3.0, "max": 10.0}
    assert spread_of([]) is None


def test_ratios_are_of_equal_repetitions() -> None:
    # By place, 8 / 1 and 9 / 2 would be compared.
    assert paired_ratios({1: 8.0, 2: 9.0}, {0: 1.0, 1: 2.0, 2: 3.0}) == [4.0, 3.0]
    assert paired_ratios({0: 1.0}, {1: 1.0}) == []
    assert paired_ratios({0: 1.0, 1: 2.0}, {0: 0.0, 1: 1.0}) == [2.0]


def test_differences_are_of_equal_repetitions() -> None:
    assert paired_differences({0: 5.0, 1: 8.0}, {1: 2.0}) == [6.0]


def test_middle_is_the_median() -> None:
    assert middle([9.0, 1.0, 2.0]) == 2.0
    assert middle([]) is None


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (95, 4.0), (1, 1.0)])
def test_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value
