"""Throughput of transfers compared with that of rclone, warm and cold."""

import pytest

from bench.transfer import COLD, OURS, WARM, WITH_KEY, Timing, ratios, require_one_life, server_results, size_class
from bench.transfer import results_of as transfers


def timing(side: str, megabytes: int, seconds: float, repeat: int = 0, direction: str = "upload") -> Timing:
    return Timing(side, direction, megabytes, repeat, seconds, cores_busy_before=0.1)


def test_repetition_is_compared_with_the_same_repetition() -> None:
    # Pairs give 2 and 4; medians of the sides, 3 / 1.5, would hide that.
    found = [timing(OURS, 1, 1.0, 0), timing(WARM, 1, 2.0, 0), timing(OURS, 1, 2.0, 1), timing(WARM, 1, 8.0, 1)]
    assert ratios(found, WARM) == [2.0, 4.0]
    assert ratios(found, COLD) == []


def test_repetition_is_the_median_over_its_sizes() -> None:
    warm = {128: 1.0, 512: 3.0, 2048: 9.0}
    found = [*(timing(OURS, size, 1.0) for size in warm), *(timing(WARM, size, s) for size, s in warm.items())]
    assert ratios(found, WARM) == [3.0]


def test_transfer_without_its_counterpart_is_not_compared() -> None:
    assert ratios([timing(OURS, 1, 1.0, 0), timing(WARM, 1, 2.0, 1)], WARM) == []


def test_small_and_large_sizes_are_apart() -> None:
    found = [
        *(timing(side, 1, s) for side, s in ((OURS, 1.0), (WARM, 4.0), (COLD, 6.0))),
        *(timing(side, 512, s) for side, s in ((OURS, 10.0), (WARM, 5.0), (COLD, 8.0))),
        *(timing(side, 1, s, direction="download") for side, s in ((OURS, 1.0), (WARM, 3.0), (COLD, 9.0))),
    ]
    small, large, download = transfers(found)
    assert [r.name for r in (small, large, download)] == ["upload, small", "upload, large", "download, small"]
    assert (small.ratio, large.ratio, download.ratio) == (4.0, 0.5, 3.0)
    assert (small.with_startup, large.with_startup, download.with_startup) == (6.0, 0.8, 9.0)
    assert large.aim is not None
    assert not large.aim.met_by(large.ratio)
    assert list(small.cores_busy) == [0.1] * 3
    assert len(small.samples) == 3


def test_server_is_compared_with_the_key() -> None:
    seconds = {OURS: 2.0, WITH_KEY: 1.8, WARM: 1.0, COLD: 3.0}
    [result] = server_results([timing(side, 16, s, repeat) for repeat in range(3) for side, s in seconds.items()])
    assert result.name == "upload through the server, small"
    assert list(result.repetitions) == [0.9] * 3
    assert result.aim is not None
    assert not result.aim.met_by(result.ratio)
    assert len(result.samples) == 6
    assert result.notes == ["16 MB (3 samples): ours 8 MB/s, ours with the key 9 MB/s"]
    assert server_results([timing(OURS, 16, 1.0), timing(WARM, 16, 1.0)]) == []


def test_note_has_the_number_of_samples_of_each_size() -> None:
    seconds = {OURS: 2.0, WARM: 4.0, COLD: 8.0}
    found = [timing(side, 16, s, repeat) for repeat in range(3) for side, s in seconds.items()]
    [result] = transfers(found)
    assert list(result.repetitions) == [2.0] * 3
    assert result.notes == ["16 MB (3 samples): ours 8 MB/s, rclone warm 4 MB/s, rclone cold 2 MB/s"]


@pytest.mark.parametrize(("megabytes", "kind"), [(1, "small"), (16, "small"), (17, "large"), (2048, "large")])
def test_sizes_have_a_class(megabytes: int, kind: str) -> None:
    assert size_class(megabytes) == kind


def test_a_server_that_was_restarted_in_between_leaves_no_result() -> None:
    require_one_life([("a", 0)], [("a", 0)])
    for after in ([("a", 1)], [("b", 0)], []):
        with pytest.raises(SystemExit, match="restarted"):
            require_one_life([("a", 0)], after)
