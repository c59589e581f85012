"""What a run left in S3, read back: one line of metrics per step."""

import json
from statistics import fmean
from typing import Any

from rlrun.artifacts.layout import RunLayout
from rlrun.artifacts.store import Store

Line = dict[str, Any]


def read_metrics(store: Store, layout: RunLayout) -> list[Line]:
    """The metric lines of a run by step.

    A step that was trained twice, because its trainer died before the next checkpoint, is there once: as trained last.
    """
    lines: dict[int, Line] = {}
    folder = layout.root / "metrics"
    for name, _ in sorted(store.list_files(folder)):
        for text in store.get_bytes(folder / name).decode().splitlines():
            line = json.loads(text)
            lines[line["step"]] = line
    return [lines[step] for step in sorted(lines)]


def mean_of(lines: list[Line], name: str) -> float:
    """Mean of one metric over the lines that have it. Raises KeyError when none has."""
    values = [line[name] for line in lines if line.get(name) is not None]
    if not values:
        raise KeyError(f"no step reported {name}")
    return fmean(values)
