"""Grants that end, which a pool's processes hold."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun_operator.resources.access.storage_access import StorageAccess

from tests.support.built_children import IDENTITY, SETTINGS, resolved
from tests.support.cluster_objects import STORAGE_KEY
from tests.support.expectations import present

OF_RUN = StorageAccess.of_run(IDENTITY, SETTINGS, resolved(), STORAGE_KEY)
HALF_HOUR = timedelta(minutes=30)
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
READABLE = ["s3://rlrun/prod/other/uid-0/checkpoints/step-000004"]
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def end_of(text: str) -> datetime:
    return present(present(signed_text.verify(text, [STORAGE_KEY], StorageGrant)).ends)


def test_the_trainer_of_a_pool_gets_the_runs_folder() -> None:
    text = OF_RUN.held_grant(StorageRole.trainer, "pool-a", BEGIN, READABLE)
    own = present(signed_text.verify(OF_RUN.grant(StorageRole.trainer, READABLE), [STORAGE_KEY], StorageGrant))
    held = present(signed_text.verify(text, [STORAGE_KEY], StorageGrant))
    assert held == own.model_copy(update={"holder": "pool-a", "ends": BEGIN + timedelta(hours=2)})
    assert held.audience == "rlrun/pool-a/trainer"


def test_the_engines_of_a_pool_get_a_grant_that_ends() -> None:
    of_pool = StorageAccess(SETTINGS, STORAGE_KEY, "team", "pool-a")
    text = of_pool.held_grant(StorageRole.inference, "pool-a", BEGIN, READABLE)
    grant = present(signed_text.verify(text, [STORAGE_KEY], StorageGrant))
    assert (grant.folder, grant.readable, grant.audience) == ("", READABLE, "rlrun/pool-a/inference")
    volume = of_pool.client(StorageRole.inference, with_grant=False).volumes["storage-token-inference"]
    assert volume["projected"]["sources"][0]["serviceAccountToken"]["audience"] == grant.audience


@pytest.mark.parametrize("microseconds", [0, 1, 999_999])
def test_a_grant_changes_every_half_hour_only(microseconds: int) -> None:
    def grant(now: datetime) -> str:
        return OF_RUN.held_grant(StorageRole.trainer, "pool-a", now)

    moments = [BEGIN + timedelta(seconds=seconds, microseconds=microseconds) for seconds in range(0, 1800, 97)]
    last = BEGIN + HALF_HOUR - timedelta(microseconds=1)
    assert {grant(moment) for moment in (*moments, last)} == {grant(BEGIN)}
    assert len({grant(BEGIN + number * HALF_HOUR) for number in range(-2, 3)}) == 5


@given(TIMES)
def test_at_least_ninety_minutes_and_at_most_two_hours_are_left(now: datetime) -> None:
    end = end_of(OF_RUN.held_grant(StorageRole.trainer, "pool-a", now))
    assert timedelta(minutes=90) < end - now <= timedelta(hours=2)
    assert end.microsecond == 0
