"""What the configuration of an attempt says about its pods."""

import pytest
from rlrun.protocol.resolved import ResolvedRun

from tests.support.built_children import resolved

POOL = "rlpool-a-b-0"


@pytest.mark.parametrize(
    ("host", "trains"),
    [
        (f"{POOL}-trainer.team.svc", True),
        ("reverse-trainer.team.svc", False),
        (f"{POOL}-trainer-2.team.svc", False),
        (f"{POOL}.team.svc", False),
    ],
)
def test_an_attempt_with_shared_engines_trains_in_the_pool_only_if_its_trainer_is_that_of_the_pool(
    host: str, trains: bool
) -> None:
    run = resolved(pool=POOL)
    endpoints = run.endpoints.model_copy(update={"trainer_url": f"http://{host}:8080"})
    stored = run.model_copy(update={"endpoints": endpoints}).model_dump_json(by_alias=True)
    assert ResolvedRun.parse(stored).trains_in_pool is trains
