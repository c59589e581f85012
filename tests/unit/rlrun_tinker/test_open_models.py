"""Models that wait for their pool are asked for often while they are new, and rarely later."""

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from rlrun.api.base.phases import Phase
from rlrun.protocol.client_run import ClientModel, ModelId
from rlrun_tinker.callers import CredentialHolder
from rlrun_tinker.open_models import OpenModels
from rlrun_tinker.run_server import RunServer

from tests.support.tinker_backend import MODEL

LOOKS_PER_SECOND = 20


class WaitingRuns:
    """A server of runs, none of which has a trainer."""

    def __init__(self, age: float) -> None:
        self.age = age
        self.requests = 0

    async def open(self, _: CredentialHolder, model: ModelId) -> ClientModel:
        self.requests += 1
        created = datetime.now(UTC) - timedelta(seconds=self.age)
        return ClientModel(
            namespace="team", run="run", uid="uid", base_model=MODEL, rank=8, created_at=created, phase=Phase.queued
        )


@pytest.mark.parametrize(("age", "seconds", "requests"), [(0.5, 1, 4), (8, 10, 10), (60, 15, 2), (3600, 100, 10)])
async def test_a_model_that_waits_is_asked_for_less_often_the_older_it_is(
    age: float, seconds: int, requests: int
) -> None:
    times, runs = [0.0], WaitingRuns(age)
    models = OpenModels(cast("RunServer", runs), lambda: times[-1])
    caller, model = CredentialHolder("tml-ann", "digest of ann"), ModelId.parse("ts-000000000000.team:train:0")
    for look in range(seconds * LOOKS_PER_SECOND):
        times.append(look / LOOKS_PER_SECOND)
        await models.open(caller, model)
    assert runs.requests == requests
