"""Names of metrics that the code of environments chooses. Pure.

Each name is a series in Prometheus, W&B and the files of the run. The environments of a run have at most MAX_NAMES
between them; a name that was kept once stays.
"""

from collections.abc import Mapping

from rlrun.constants import Reason
from rlrun.protocol.problem import Problem

MAX_NAMES = 200
OF_AGENTS = ("reward/", "val_reward/", "eval/")
"""Metrics of environments, which agents have too: with the agent's name behind that of the environment."""
SHOWN = 3
"""Names in a message."""
SHOWN_CHARACTERS = 80


class ChosenMetricNames:
    """The names of one run."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._kept: set[str] = set()
        self._dropped: list[str] = []

    def select(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values without names beyond the limit."""
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
        """Problem that names what the last `select` left out, None if it left out nothing."""
        if not self._dropped:
            return None
        some = ", ".join(name[:SHOWN_CHARACTERS] for name in self._dropped[:SHOWN])
        return Problem(
            reason=Reason.METRIC_NAMES_DROPPED,
            message=f"{len(self._dropped)} metrics of the newest step are left out, because the environments of this "
            f"run have reported {self._limit} other names before: {some}. Put no ids or texts into names of metrics.",
        )


def _is_chosen(name: str) -> bool:
    """Return whether code of an environment has chosen the name: of a metric, or of an agent."""
    return name.startswith("metrics/") or (name.startswith(OF_AGENTS) and name.count("/") > 2)
