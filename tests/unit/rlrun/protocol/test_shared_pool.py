import pytest
from pydantic import ValidationError
from rlrun.protocol.shared_pool import (
    PooledRun,
    PoolOrder,
    TrainedRun,
    TrainerOrder,
    engine_name,
    uid_of,
)


def entry(uid: str, digit: str) -> PooledRun:
    return PooledRun(uid=uid, token_digest=digit * 64, policies=f"s3://bucket/{uid}/policy", max_requests=1)


@pytest.mark.parametrize(
    ("runs", "field"),
    [((entry("u", "a"), entry("u", "b")), "uid"), ((entry("u", "a"), entry("v", "a")), "token_digest")],
)
def test_an_order_with_a_repeated_run_is_refused(runs: tuple[PooledRun, ...], field: str) -> None:
    with pytest.raises(ValidationError, match=f"two runs have the same {field}"):
        PoolOrder(base="org/model", runs=list(runs))


def test_an_order_of_the_trainer_with_a_repeated_run_is_refused() -> None:
    run = TrainedRun(uid="u", token_digest="a" * 64, folder="s3://bucket/u", keep_policies=8)
    with pytest.raises(ValidationError, match="two runs have the same uid"):
        TrainerOrder(runs=[run, run.model_copy(update={"token_digest": "b" * 64})])


def test_the_uid_of_a_name_in_the_engine_is_found() -> None:
    uid = "0b8c7d1e-0000-4000-8000-000000000001"
    assert uid_of(engine_name(uid, "policy-v000001-0123abcd")) == uid
