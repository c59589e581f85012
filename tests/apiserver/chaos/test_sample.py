"""A few scenarios of the apiserver level, so that `make test` knows that they work; `make chaos` plays all of them."""

from collections.abc import Iterator

import pytest
from kubernetes import client

from local_cluster.control_plane.api_server_only import ControlPlane
from tests.chaos.apiserver import catalog
from tests.chaos.apiserver.place import Place, opened
from tests.chaos.report import table
from tests.chaos.runner import run_one
from tests.chaos.scenario import Outcome
from tests.unit.artifacts.seaweedfs import S3Server, running

SAMPLE = (
    "undisturbed",
    "operator-killed-after-write/05",
    "operator-killed-before-write/30",
    "operator-killed-after-write/50",
    "watch/410-gone-again-and-again",
    "storm/everything-at-once",
)


@pytest.fixture(scope="module")
def place(
    api: client.ApiClient, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """The session's API server, which has the CRDs, and an S3."""

    def with_s3(server: S3Server) -> Iterator[Place]:
        with opened(control_plane, server) as found:
            yield found

    with running(tmp_path_factory.mktemp("chaos-s3")) as server:
        yield from with_s3(server)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_run_survives(place: Place, name: str) -> None:
    scenario = next(s for s in catalog.scenarios(seed=0) if s.name == name)
    result = run_one(scenario, place)
    assert result.outcome is Outcome.survived, f"{table([result])}\n{result.detail}"
