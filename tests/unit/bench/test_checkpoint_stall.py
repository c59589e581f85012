"""Time that a checkpoint holds a step up."""

import pytest

from bench.checkpoint_stall import result_of as standstill


def test_checkpoint_copies_are_read_from_the_line_of_the_next_step() -> None:
    def line(step: int, copies: float) -> dict[str, float]:
        times = {"time/step": 1.0, "time/save_ckpt": copies / 4, "trainer/time/save_ckpt": copies}
        return {"step": step, "progress/step": step, **times}

    lines = [line(1, 9.0), *(line(step, 0.02 if step in (6, 11) else 0.0) for step in range(2, 12))]
    result = standstill(lines, 5)  # type: ignore[arg-type]
    assert [(sample["copies"], sample["waited"]) for sample in result.samples] == [(0.02, 0.005)] * 2
    assert result.ratio == pytest.approx(2.0)


def test_run_without_a_checkpoint_has_no_result() -> None:
    assert standstill([], 5).ratio is None
