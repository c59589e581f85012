"""The lines of a run's metrics, as a reader wants them: one per step. Pure.

A run writes one line per step it trains, and one per evaluation under the step whose policy was measured, whenever that
finishes. Values are numbers; those of histograms are lists of numbers.
"""

import json
from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]

TRAINED = "progress/step"
"""Every line of a trained step has it, no other line has."""


def parse_lines(text: str) -> list[Line]:
    """The lines of one file. Raises ValueError when it is no file of metrics."""
    return [json.loads(line) for line in text.splitlines()]


def merged(lines: Iterable[Line]) -> list[Line]:
    """One line per step, by step: as trained last, with the newest results of each evaluation of its policy."""
    trained: dict[int, Line] = {}
    measured: dict[int, Line] = {}
    for line in lines:
        step = int(line["step"])
        if TRAINED in line:
            trained[step] = line
        else:
            measured[step] = measured.get(step, {}) | line
    return [measured.get(step, {}) | trained.get(step, {}) for step in sorted(trained.keys() | measured.keys())]
