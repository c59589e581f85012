"""A few scenarios of the apiserver level, so that `make test-all` knows that they work; `make chaos` plays all."""

from collections.abc import Iterator

import pytest

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.chaos.apiserver import catalog
from tests.chaos.apiserver.place import Place, opened
from tests.chaos.report import table
from tests.chaos.runner import run_one
from tests.chaos.scenario import Outcome
from tests.support.seaweedfs import S3Server

pytestmark = pytest.mark.extended

SAMPLE = (
    "undisturbed",
    "operator-killed-after-write/05",
    "operator-killed-before-writing/07",
    "operator-killed-after-write/50",
    "watch/410-gone-again-and-again",
    "storm/everything-at-once",
)


@pytest.fixture(scope="module")
def place(control_plane: ControlPlane, s3_server: S3Server) -> Iterator[Place]:
    """The session's API server and S3."""
    with opened(control_plane, s3_server) as found:
        yield found


@pytest.mark.parametrize("name", SAMPLE)
def test_a_run_survives_each_sampled_scenario(place: Place, name: str) -> None:
    scenario = next(s for s in catalog.scenarios(seed=0) if s.name == name)
    result = run_one(scenario, place)
    assert result.outcome is Outcome.survived, f"{table([result])}\n{result.detail}"
