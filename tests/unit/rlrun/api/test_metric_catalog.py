"""Names of metrics: those of the catalog, and those that other trainers use."""

import re

import pytest
from rlrun.api.metric_catalog import ALIASES, SECTIONS, canonical, find


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.name)
def test_an_alias_names_a_metric_of_the_catalog_and_no_other_metric(alias):
    assert canonical(alias.name) == alias.metric
    assert find(alias.metric) is not None
    assert find(alias.name) is None


def test_the_names_of_the_catalog_are_their_own():
    names = [re.sub(r"<\w+>", "1", metric.name) for section in SECTIONS for metric in section.metrics]
    assert [canonical(name) for name in names] == names
