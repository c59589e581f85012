"""All scenarios of the apiserver level."""

from collections.abc import Iterator

from tests.chaos.apiserver import kills, processes
from tests.chaos.scenario import Scenario


def scenarios(seed: int) -> Iterator[Scenario]:
    """Seeds count from `seed` on."""
    yield from kills.scenarios(seed)
    yield from processes.scenarios(seed)
