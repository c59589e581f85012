"""The oracle reports each planted bug, and nothing without one."""

import logging
from collections.abc import Iterator
from functools import cache

import pytest

from tests.chaos import self_test
from tests.chaos.report import failures, table
from tests.chaos.runner import run_all
from tests.chaos.scenario import Scenario
from tests.chaos.self_test import BUGS, Bug

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@cache
def sample() -> list[Scenario]:
    return self_test.sample()


def test_sampled_scenarios_survive_without_a_planted_bug() -> None:
    results = run_all(sample(), None)
    if failures(results):
        pytest.fail(table(results), pytrace=False)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_reported(bug: Bug) -> None:
    verdict = self_test.try_bug(bug, sample())
    assert verdict.found, f"{bug.name}: {verdict.scenario or 'every scenario survived'}: {verdict.detail[-500:]}"
