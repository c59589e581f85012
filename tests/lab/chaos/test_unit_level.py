"""Every scenario of the unit level: whatever breaks, the run comes out of it. `make chaos` plays the same ones."""

import logging
from collections.abc import Iterator
from itertools import islice

import pytest

from tests.chaos.catalog import scenarios
from tests.chaos.report import failures, table
from tests.chaos.runner import run_all
from tests.chaos.unit.kills import LIVES, distinct_kills, possible_kills

PARTS = 8
"""So many tests share the scenarios, each takes every eighth: workers have equal shares."""


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_scenario_survives(quiet: None, part: int) -> None:
    # Few tests: a thousand entries in pytest's report would hide the rest, and the table names those that did not.
    results = run_all(islice(scenarios("unit"), part, None, PARTS), None)
    assert len(results) >= 200 // PARTS
    if failures(results):
        pytest.fail(table(results), pytrace=False)


@pytest.mark.slow
def test_scenario_names_and_seeds_are_unique_and_reproducible() -> None:
    names = [(s.name, s.seed) for s in scenarios("unit", seed=7)]
    assert len(names) == len(set(names))
    assert names == [(s.name, s.seed) for s in scenarios("unit", seed=7)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVES)
def test_each_kill_leaves_a_state_of_its_own_and_every_state_has_its_kill(name: str) -> None:
    worlds = {(k.call.index, k.after_effect): k.world for k in possible_kills(name, all_calls=True)}
    played = [worlds[k.call.index, k.after_effect] for k in distinct_kills(name)]
    assert len(played) == len(set(played))
    # Also the states before and after reads, which are not played because reads change nothing.
    assert set(played) == set(worlds.values())
