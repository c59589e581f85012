"""Defaults of CPU and memory for trainers and engines."""

from typing import Any

import pytest
from rlrun.api.base.kubernetes_types import Resources
from rlrun.api.base.pod_sizes import default_resources, with_default_resources

FOUR = {"requests": {"cpu": "8", "memory": "32Gi"}, "limits": {"cpu": "64", "memory": "512Gi"}}
NONE = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "16", "memory": "32Gi"}}


@pytest.mark.parametrize(("gpus", "expected"), [(4, FOUR), (0, NONE)])
def test_containers_have_requests_for_quotas_and_limits_for_limit_ranges(gpus: int, expected: dict[str, Any]) -> None:
    assert default_resources(gpus).model_dump() == expected
    assert with_default_resources(Resources(), gpus).model_dump() == expected


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (Resources(requests={"cpu": "100m"}), ({"cpu": "100m", "memory": "32Gi"}, {"memory": "512Gi"})),
        (Resources(limits={"memory": "3Gi"}), ({"cpu": "8"}, {"cpu": "64", "memory": "3Gi"})),
        (
            Resources(requests={"cpu": "1", "rdma/ib": "1"}, limits={"memory": "3Gi"}),
            ({"cpu": "1", "rdma/ib": "1"}, {"memory": "3Gi"}),
        ),
    ],
)
def test_what_the_rlmodel_names_has_no_default_beside_it(
    named: Resources, expected: tuple[dict[str, str], dict[str, str]]
) -> None:
    found = with_default_resources(named, 4)
    assert (found.requests, found.limits) == expected
