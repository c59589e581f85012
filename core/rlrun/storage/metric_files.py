"""Parses a run's metric files and merges their lines into one per step.

A run writes one line per trained step. When an evaluation ends, the run writes a further line, with the step of the
evaluated policy. Values are numbers, or lists of numbers for histograms.
"""

import json
from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]

TRAINED = "progress/step"
"""Key that is present in every line of a trained step, and in no other line."""


def parse_lines(text: str) -> list[Line]:
    """Parse the lines of a file. Raises ValueError if a line is invalid."""
    return [json.loads(line) for line in text.splitlines()]


def merge_lines(lines: Iterable[Line]) -> list[Line]:
    """Return one line per step, in ascending order of steps, with the metrics of the step's latest training and the
    latest results of each evaluation.
    """
    trained: dict[int, Line] = {}
    measured: dict[int, Line] = {}
    for line in lines:
        step = int(line["step"])
        if TRAINED in line:
            trained[step] = line
        else:
            measured[step] = measured.get(step, {}) | line
    return [measured.get(step, {}) | trained.get(step, {}) for step in sorted(trained.keys() | measured.keys())]
