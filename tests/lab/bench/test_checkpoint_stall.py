"""Time that a checkpoint holds a step up."""

import pytest

from bench.checkpoint_stall import result_of as standstill


def line(step: int, copies: float, seconds: float = 1.0) -> dict[str, float]:
    times = {"time/step": seconds, "time/save_ckpt": copies / 4, "trainer/time/save_ckpt": copies}
    return {"step": step, "progress/step": step, **times}


def run_of(copies: float, seconds: float = 1.0) -> list[dict[str, float]]:
    return [line(1, 9.0), *(line(step, copies if step in (6, 11) else 0.0, seconds) for step in range(2, 12))]


def test_checkpoint_copies_are_read_from_the_line_of_the_next_step() -> None:
    result = standstill([run_of(0.02)], 5)  # type: ignore[list-item]
    assert [(sample["copies"], sample["waited"]) for sample in result.samples] == [(0.02, 0.005)] * 2
    assert result.ratio == pytest.approx(2.0)


def test_each_run_is_compared_with_its_own_steps() -> None:
    runs = [run_of(0.02), run_of(0.04, 4.0), run_of(0.03, 1.0)]
    result = standstill(runs, 5, [0.1, 0.1, 0.4])  # type: ignore[arg-type]
    assert list(result.repetitions) == pytest.approx([2.0, 1.0, 3.0])
    assert result.ratio == pytest.approx(2.0)
    assert list(result.cores_busy) == [0.1, 0.1, 0.4]


def test_run_without_a_checkpoint_has_no_result() -> None:
    assert standstill([[]], 5).ratio is None
    assert standstill([], 5).ratio is None
