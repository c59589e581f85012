"""All scenarios by level. Exhaustive ones first play the run without a fault, to list the calls that can fail."""

from collections.abc import Iterator

from tests.chaos.scenario import Level, Scenario
from tests.chaos.unit import clocks, kills, names, pods, storms, uploads


def scenarios(level: Level, seed: int = 0) -> Iterator[Scenario]:
    """The scenarios of one level; seeds count from `seed` on."""
    if level == "unit":
        yield from uploads.scenarios()
        yield from kills.scenarios()
        yield from storms.scenarios(seed)
        yield from pods.scenarios(seed)
        yield from clocks.scenarios()
        yield from names.scenarios()
    elif level == "apiserver":
        from tests.chaos.apiserver import catalog as apiserver

        yield from apiserver.scenarios(seed)
    else:
        from tests.chaos import e2e

        yield from e2e.scenarios(seed)
