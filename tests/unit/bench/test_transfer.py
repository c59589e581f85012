"""Throughput of transfers compared with that of rclone."""

import pytest

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
