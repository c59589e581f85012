"""Results of a busy machine are invalid, and old files say what they lack."""

from typing import Any

import pytest

from bench.machine_load import LIMIT
from bench.validity import Validity, lacking, validity


def entry(name: str = "uneven", load: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    found = {"name": name, "command": "python -m bench.trl", "commit": "abc", "samples": [], **changes}
    return found if load is None else found | {"cores_busy_before": load}


def old(name: str, *loads: float, **changes: Any) -> dict[str, Any]:
    """An entry of the first format, with the load in the samples of one side."""
    samples = [{"side": "ours"}, *({"side": "trl", "cores_busy_before": load} for load in loads)]
    return entry(name, samples=samples, **changes)


@pytest.mark.parametrize(("loads", "valid"), [([0.1, LIMIT], True), ([0.1, 1.98, 0.1], False), ([], None)])
def test_one_busy_reading_makes_a_result_invalid(loads: list[float], valid: bool | None) -> None:
    assert validity(entry(load=loads)).valid is valid
    assert validity(old("uneven", *loads)).valid is valid


def test_reading_that_is_not_a_number_is_invalid() -> None:
    assert validity(entry(load=["nan"])).valid is False


def test_limit_is_that_of_the_machine_that_measured() -> None:
    many = entry(load=[0.1, 1.98], machine={"cores": 64})
    assert validity(many).valid is True
    assert validity(entry("uneven, samples", machine={"cores": 64}), [many]).valid is True
    assert validity(entry(load=[0.1, 1.98], machine={"cores": 2})).valid is False
    assert "at most 3.2 may be" in Validity([4.0], 64).explanation()


def test_explanation_names_the_load_the_limit_and_the_next_step() -> None:
    text = Validity([0.1, 1.97972]).explanation()
    assert "1.98 cores" in text
    assert str(LIMIT) in text
    assert "again" in text


def test_second_figure_of_a_measurement_has_its_load() -> None:
    rows = [old("demo", 0.1), old("uneven", 1.98), old("uneven, samples")]
    assert validity(rows[2], rows).valid is False
    assert validity(old("demo, samples"), rows).valid is True


def test_load_of_another_command_or_commit_is_not_taken() -> None:
    rows = [old("uneven", 1.98)]
    assert validity(old("uneven, samples", command="python -m bench.trl --task uneven"), rows).valid is None
    assert validity(old("uneven, samples", commit="def"), rows).valid is None
    assert validity(entry("uneven, samples", load=[0.1]), rows).valid is True


def test_old_entry_lacks_spread_start_up_and_drawn_rollouts() -> None:
    assert lacking("trl", old("demo")) == ["spread", "start-up", "rollouts drawn"]
    assert lacking("gateway", old("latency")) == ["spread", "start-up"]
    new = {"repetitions": None, "with_startup": None, "figures": {"drawn": {}}}
    assert lacking("trl", entry(**new)) == []
