"""Every scenario of the unit level: whatever breaks, the run comes out of it. `make chaos` plays the same ones."""

import logging
from collections.abc import Iterator

import pytest

from tests.chaos.catalog import scenarios
from tests.chaos.report import failures, table
from tests.chaos.runner import run_all


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_every_scenario_survives(quiet: None) -> None:
    # One test: a thousand entries in pytest's report would hide the rest, and the table names those that did not.
    results = run_all(scenarios("unit"), None)
    assert len(results) >= 200
    if failures(results):
        pytest.fail(table(results), pytrace=False)


def test_a_scenario_can_be_told_again_from_its_name_and_seed() -> None:
    names = [(s.name, s.seed) for s in scenarios("unit", seed=7)]
    assert len(names) == len(set(names))
    assert names == [(s.name, s.seed) for s in scenarios("unit", seed=7)]
