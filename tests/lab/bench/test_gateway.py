"""Latency that the gateway adds: rounds of pairs."""

import pytest

from bench.gateway import LATENCY_ROUNDS, latency_result, round_of


def pair(number: int, round_number: int, direct: float, gateway: float) -> dict[str, float]:
    return {"pair": number, "round": round_number, "direct_ms": direct, "gateway_ms": gateway}


def test_latency_is_the_median_over_rounds_of_the_median_of_pairs() -> None:
    # The difference of the medians of all requests, 60 - 50, is not what a request pays.
    samples = [pair(0, 0, 10, 12), pair(1, 0, 100, 103), pair(2, 1, 50, 60), pair(3, 2, 50, 54)]
    found = latency_result(samples, [0.1, 0.1, 0.7])
    assert list(found.repetitions) == pytest.approx([2.5, 10.0, 4.0])
    assert found.ratio == pytest.approx(4.0)
    assert list(found.cores_busy) == [0.1, 0.1, 0.7]


@pytest.mark.parametrize("pairs", [LATENCY_ROUNDS, 7, 150])
def test_pairs_are_divided_into_all_rounds(pairs: int) -> None:
    assert sorted({round_of(number, pairs) for number in range(pairs)}) == list(range(LATENCY_ROUNDS))
    assert round_of(-1, pairs) == -1
