"""Writes during gaps that none of the changes needed."""

import pytest

from bench.scale.scenarios.gaps import needless_writes
from tests.support.api_proxy import Request

RLRUNS = "/apis/rlrun.dev/v1alpha1/namespaces"


def requests(*calls: str) -> list[Request]:
    return [Request(i, *call.split(), watch=False) for i, call in enumerate(calls)]  # type: ignore[misc]


@pytest.mark.parametrize(
    "call",
    [
        f"PATCH {RLRUNS}/runs-0/rlruns/run-0/status",
        "POST /api/v1/namespaces/runs-0/events",
        "DELETE /apis/batch/v1/namespaces/changed-2/jobs/run-0",
        "PUT /api/v1/namespaces/changes/configmaps/run-1",
        "POST /apis/apps/v1/replicasets",
    ],
)
def test_a_write_elsewhere_is_needless(call: str) -> None:
    assert needless_writes(requests(call), "changed") == [call]


def test_reads_the_lease_and_writes_about_the_changed_runs_are_not_needless() -> None:
    needed = requests(
        "GET /api/v1/namespaces/runs-0/pods",
        "PUT /apis/coordination.k8s.io/v1/namespaces/rlrun-system/leases/rlrun-operator",
        f"PATCH {RLRUNS}/changed/rlruns/run-0/status",
        "DELETE /apis/batch/v1/namespaces/changed/jobs/run-0",
        "POST /api/v1/namespaces/changed/events",
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    )
    assert needless_writes(needed, "changed") == []


def test_one_new_number_of_runs_in_the_status_of_their_model_is_needed_because_one_was_stopped() -> None:
    status = "PATCH /apis/rlrun.dev/v1alpha1/rlmodels/tiny/status"
    assert needless_writes(requests(status), "changed") == []
    assert needless_writes(requests(status, "POST /a", status), "changed") == ["POST /a", status]
    assert needless_writes(requests("PATCH /apis/rlrun.dev/v1alpha1/rlmodels/tiny"), "changed") != []
