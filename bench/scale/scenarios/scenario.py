"""A scenario of the benchmark, and the rows that follow from the figures of its repetitions. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.repetitions import middle
from bench.report import Result, Target

SIZES = ("runs", "finished", "gap_seconds")
"""Figures that describe the size of a measurement. Rows with different sizes are not compared."""
LOWER, HIGHER = "lower", "higher"
"""Better direction of a number, for the comparison with recorded ranges (`figures.better`)."""
MIB = 2**20
CONTROL_PLANE = (
    "controller manager and scheduler with 300 requests/s and a burst of 500 (defaults: 20 and 30, 50 and 100), etcd "
    "without fsync, all else with defaults; all processes on the same cores"
)
"""Flags of the control plane that differ from the defaults, for the notes of results."""

Figures = Mapping[str, Any]
"""Figures of one repetition by name: numbers, and texts for notes."""


@dataclass(frozen=True)
class Options:
    """Sizes and times of one repetition."""

    runs: int
    """Number of runs created at once."""
    finished: int
    """Number of additional finished runs."""
    step_seconds: float = 10.0
    """Seconds between two steps of a run that trains."""
    rest_seconds: float = 45.0
    """Seconds of each measurement of quiet runs and of runs that train."""
    gap_seconds: float = 15.0
    """Seconds of a gap, in which the operator has no watches."""


@dataclass(frozen=True)
class FigureRow:
    """Row of a scenario. Texts may contain figures, such as `{runs}`: the medians of the repetitions."""

    name: str
    what: str
    figure: str
    """Name of the figure whose value is the number of this row."""
    unit: str
    aim: Target | None = None
    note: str = ""
    better: str = LOWER


@dataclass(frozen=True)
class Scenario:
    """Scenario of the benchmark. Each repetition has its own cluster."""

    what: str
    """Description in one line."""
    play: Callable[[Options], Figures]
    rows: Sequence[FigureRow]
    runs: int
    """Default of the option --runs."""
    repeats: int
    """Default of the option --repeats."""
    minutes: float
    """Expected minutes of one repetition on two cores."""
    finished: int = 0
    """Default of the option --finished."""


def results_of(rows: Sequence[FigureRow], found: Sequence[Figures], cores_busy: Sequence[float] = ()) -> list[Result]:
    """Return the results of all repetitions. The number of a row is the median of its repetitions."""
    shown = {
        name: median(each[name] for each in found) if isinstance(value, int | float) else value
        for name, value in found[-1].items()
    }
    sizes = {name: found[-1][name] for name in SIZES if name in found[-1]}
    return [
        Result(
            name=row.name,
            what=row.what.format(**shown),
            ratio=middle([float(each[row.figure]) for each in found]),
            aim=row.aim,
            unit=row.unit,
            samples=[{name: each[name] for name in each} for each in found] if row is rows[0] else (),
            notes=[row.note.format(**shown, control_plane=CONTROL_PLANE)] if row.note else [],
            figures={**sizes, "better": row.better},
            repetitions=[float(each[row.figure]) for each in found],
            cores_busy=cores_busy,
        )
        for row in rows
    ]
