"""Wall clock of commands: both sides, in alternating order."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.server.commands import measure_pair
from bench.server.results import of_help, of_list

SLOW = [sys.executable, "-S", "-c", "import time; time.sleep(0.3); print('a'); print('b')"]


def test_a_command_that_sleeps_is_seen() -> None:
    pair = measure_pair(SLOW, ["true"], 2)
    assert len(pair.ours) == len(pair.peer) == 2
    assert min(pair.ours) >= 0.3
    assert pair.output_lines == 2
    ratio, time = of_help(pair, [0.1])
    assert ratio.aim is not None
    assert time.aim is not None
    assert not ratio.aim.met_by(ratio.ratio)
    assert not time.aim.met_by(time.ratio)


def test_the_order_alternates_and_the_first_run_of_each_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def command(name: str) -> list[str]:
        return ["sh", "-c", f"echo {name} >> {log}"]

    pair = measure_pair(command("ours"), command("peer"), 2)
    assert log.read_text().split() == ["peer", "ours", "ours", "peer", "peer", "ours"]
    assert (len(pair.ours), len(pair.peer)) == (2, 2)


def test_a_command_that_fails_is_not_fast() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        measure_pair(["false"], ["true"], 1)


def test_the_ratio_is_that_of_the_pairs() -> None:
    pair = measure_pair(["true"], ["true"], 1)
    pair = type(pair)([0.3, 0.1, 0.4], [0.1, 0.1, 0.1], 1001)
    row = of_list(pair, 1000, [0.1])
    assert row.ratio == pytest.approx(3.0)
    assert list(row.repetitions) == pytest.approx([3.0, 1.0, 4.0])
