import pytest

from bench.checkpoint_stall import result_of as standstill
from bench.recovery import Recovery, percentile
from bench.recovery import results_of as recoveries
from bench.transfer import Timing, elapsed
from bench.transfer import results_of as transfers


def timing(side: str, direction: str, megabytes: int, seconds: float, repeat: int = 0) -> Timing:
    return Timing(side, direction, megabytes, repeat, seconds)


def test_transfer_result_is_the_median_over_sizes_of_medians_over_repetitions() -> None:
    found = [
        *(timing("ours", "upload", 1, s, i) for i, s in enumerate((1.0, 2.0, 9.0))),
        *(timing("rclone", "upload", 1, s, i) for i, s in enumerate((1.0, 1.0, 9.0))),
        timing("ours", "upload", 16, 2.0),
        timing("rclone", "upload", 16, 4.0),
        timing("ours", "upload", 128, 1.0),
        timing("rclone", "upload", 128, 3.0),
        timing("ours", "download", 1, 1.0),
        timing("rclone", "download", 1, 0.5),
    ]
    upload, download = transfers(found)
    assert upload.ratio == 2.0
    assert upload.figures["ratios"] == {"1": 0.5, "16": 2.0, "128": 3.0}
    assert download.ratio == 0.5
    assert upload.aim is not None
    assert upload.aim.met_by(upload.ratio)
    assert not upload.aim.met_by(download.ratio)
    assert len(upload.samples) == 10


def test_elapsed_time_of_rclone_is_read_from_its_last_statistics() -> None:
    log = '{"level":"info"}\n{"stats":{"elapsedTime":9.0}}\n{"stats":{"elapsedTime":1.25}}\nnot JSON\n'
    assert elapsed(log) == 1.25
    with pytest.raises(ValueError, match="no statistics"):
        elapsed("rclone: command line is wrong\n")


def test_rest_of_a_recovery_excludes_start_and_step() -> None:
    assert Recovery("trainer", ready=5.0, trained=8.0, usual_step=1.0).rest == 2.0
    assert Recovery("trainer", ready=5.0, trained=5.5, usual_step=1.0).rest == 0.0


def test_recovery_results_are_per_role_with_problems() -> None:
    found = [Recovery("trainer", 5.0, 7.0 + i, 1.0) for i in range(3)] + [Recovery("inference", 9.0, 10.5, 1.0)]
    trainer, inference = recoveries(found, ["inference, kill 1: no sign of the next step within 180 s"])
    assert trainer.ratio == 3.0
    assert inference.ratio == 0.5
    assert "180 s" in inference.notes[-1]
    assert len(trainer.notes) == 1


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (95, 4.0), (1, 1.0)])
def test_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == value


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
