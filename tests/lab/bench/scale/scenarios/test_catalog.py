"""Choice of scenarios."""

import pytest

from bench.report import NAMES as BENCHMARKS
from bench.scale.scenarios.catalog import NAMES, SCENARIOS, choose_scenarios


def test_without_a_name_all_are_played_and_names_choose() -> None:
    assert [s.name for s in choose_scenarios([])] == list(NAMES)
    assert [s.name for s in choose_scenarios(["soak", "burst"])] == ["burst", "soak"]
    assert "scale" in BENCHMARKS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=NAMES)
def test_every_scenario_is_described(scenario: object) -> None:
    assert scenario.what  # type: ignore[attr-defined]
    assert scenario.total_minutes > 0  # type: ignore[attr-defined]
