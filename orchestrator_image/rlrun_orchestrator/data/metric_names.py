"""Metric names chosen by environment code.

Each name is a series in Prometheus, W&B and the files of the run. The environments of a run share a limit of MAX_NAMES
names; a name that was kept once is always kept.
"""

from collections.abc import Mapping

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

MAX_NAMES = 200
OF_AGENTS = ("reward/", "val_reward/", "eval/")
"""Prefixes of environment metrics that also exist per agent, with the agent's name after the environment's name."""
SHOWN = 3
"""Maximum number of names in a message."""
SHOWN_CHARACTERS = 80


class ChosenMetricNames:
    """Metric names that the environment code of one run has chosen, up to a limit."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._kept: set[str] = set()
        self._dropped: list[str] = []

    def select(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values, without chosen names beyond the limit."""
        selected: dict[str, float] = {}
        self._dropped = []
        for name, value in values.items():
            if _is_chosen(name) and name not in self._kept:
                if len(self._kept) >= self._limit:
                    self._dropped.append(name)
                    continue
                self._kept.add(name)
            selected[name] = value
        return selected

    @property
    def problem(self) -> Problem | None:
        """Problem that lists the names dropped by the last `select`, or None if it dropped none."""
        if not self._dropped:
            return None
        some = ", ".join(name[:SHOWN_CHARACTERS] for name in self._dropped[:SHOWN])
        return Problem(
            reason=Reason.METRIC_NAMES_DROPPED,
            message=(
                f"metrics dropped from the newest step: {len(self._dropped)} ({some}), because the run's environments "
                f"have already reported {self._limit} other metric names. Do not put ids or texts into metric names."
            ),
        )


def _is_chosen(name: str) -> bool:
    """Return True if environment code has chosen the name of the metric or of the agent in it."""
    return name.startswith("metrics/") or (name.startswith(OF_AGENTS) and name.count("/") > 2)
