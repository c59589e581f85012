"""What a run left in S3, read back: one line of metrics per step."""

from statistics import fmean

from rlrun.artifacts.layout import RunLayout
from rlrun.artifacts.metric_lines import Line, merged, parse_lines
from rlrun.artifacts.store import Store

__all__ = ["Line", "mean_of", "read_metrics"]


def read_metrics(store: Store, layout: RunLayout) -> list[Line]:
    """The metric lines of a run by step.

    A step that was trained twice, because its trainer died before the next checkpoint, is there once: as trained last.
    Where a policy was evaluated before the first step, there is a line of step 0, without rewards.
    """
    folder = layout.root / "metrics"
    parts = [store.get_bytes(folder / name).decode() for name, _ in sorted(store.list_files(folder))]
    return merged(line for part in parts for line in parse_lines(part))


def mean_of(lines: list[Line], name: str) -> float:
    """Mean of one metric over the lines that have it. Raises KeyError when none has."""
    values = [line[name] for line in lines if line.get(name) is not None]
    if not values:
        raise KeyError(f"no step reported {name}")
    return fmean(values)
