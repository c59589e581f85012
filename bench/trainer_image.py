"""Results of benchmarks that need torch: measured inside the trainer's image and recorded here."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.report import ROOT, Result, Target, record

MARK = "RESULT "
"""Prefix of a line with a result, printed inside the image."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--in-image` and `--emit` to a benchmark."""
    parser.add_argument("--in-image", action="store_true", help="run inside the trainer's image, and record here")
    parser.add_argument("--emit", action="store_true", help="print results as lines for --in-image; record nothing")


def emit(result: Result) -> None:
    """Print a result for the process outside of the image."""
    print(MARK + json.dumps(asdict(result)), flush=True)


def run_in_image(benchmark: str, module: str, arguments: Sequence[str]) -> int:
    """Run `module` with these arguments inside the trainer's image and record its results. Returns its exit code."""
    inside = ["python", "-m", module, *(each for each in arguments if each != "--in-image"), "--emit"]
    argv = [sys.executable, "-m", "local_cluster.images", "run", "--env", "HF_HUB_OFFLINE=1", "trainer", "--", *inside]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        at = line.find(MARK)
        if at < 0:
            print(line, end="", flush=True)
            continue
        record(benchmark, parse_result(json.loads(line[at + len(MARK) :])))
    return process.wait()


def parse_result(values: dict[str, Any]) -> Result:
    """Return the result that was serialized with `asdict`."""
    sequences = {name: tuple(values.get(name, ())) for name in ("repetitions", "cores_busy")}
    return Result(**(values | sequences | {"aim": Target(**values["aim"]) if values["aim"] else None}))
