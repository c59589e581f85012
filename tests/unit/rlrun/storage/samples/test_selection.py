"""Filters and pages."""

import pytest
from rlrun.storage.samples.record import SampleStatus
from rlrun.storage.samples.selection import SampleFilter, select

from tests.support.sample_records import pairs


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (SampleFilter(), ["r0", "r1", "r2"]),
        (SampleFilter(min_reward=0.5), ["r1"]),
        (SampleFilter(max_reward=0.5), ["r0", "r1"]),
        (SampleFilter(max_reward=0.4), ["r0"]),
        (SampleFilter(environment="reverse", group="g0"), ["r0", "r1", "r2"]),
        (SampleFilter(environment="other"), []),
        (SampleFilter(group="other"), []),
        (SampleFilter(status=SampleStatus.trained), ["r0", "r1", "r2"]),
        (SampleFilter(status=SampleStatus.errored), []),
    ],
)
def test_each_condition_alone(wanted: SampleFilter, found: list[str]) -> None:
    assert [row.rollout for _, row in select(pairs(0.0, 0.5, None), wanted)] == found
