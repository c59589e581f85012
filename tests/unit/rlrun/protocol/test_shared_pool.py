"""The order of a shared pool: its limits, and the parts of engines and trainers."""

from datetime import UTC, datetime

from rlrun.api.base.received import parse
from rlrun.protocol import signed_text
from rlrun.protocol.shared_pool import MAX_RUNS, PooledRun, PoolOrder, for_engines, for_trainer
from rlrun.protocol.storage_access import MAX_GRANT, StorageGrant, StorageRole

SECRET_BYTES = 1024**2
"""Maximum size of a Secret."""


def order_of(
    trainer_grant: str, grant: str = "engines", count: int = 2, policies: str = "s3://bucket/run"
) -> PoolOrder:
    runs = [
        PooledRun(
            uid=f"{number:064}",
            token_digest=f"{number:064x}",
            policies=policies,
            max_requests=65_536,
            trainer_grant=trainer_grant,
        )
        for number in range(count)
    ]
    return PoolOrder(base="org/model", runs=runs, grant=grant)


def test_engines_get_no_grant_of_a_trainer() -> None:
    order = order_of("of the trainer")
    found = for_engines(order)
    assert "of the trainer" not in found.model_dump_json()
    assert found == order_of("")
    assert order == order_of("of the trainer"), "the order itself is unchanged"


def test_a_renewed_grant_of_a_trainer_changes_nothing_for_engines() -> None:
    assert for_engines(order_of("first")) == for_engines(order_of("second"))


def test_the_trainer_gets_its_grants_and_not_that_of_the_engines() -> None:
    order = order_of("of the trainer")
    assert for_trainer(order) == order_of("of the trainer", grant="")
    assert order.grant == "engines"


def test_an_order_with_the_longest_grants_of_all_runs_is_received() -> None:
    order = order_of("," * MAX_GRANT, grant="," * MAX_GRANT, count=MAX_RUNS, policies="\u00e9" * 1024)
    assert parse(PoolOrder, order.model_dump_json(by_alias=True)) == order


def test_an_order_with_grants_for_the_longest_folders_fits_into_a_secret() -> None:
    uri = f"s3://bucket/{'k' * 1012}"
    grant = StorageGrant(
        namespace="n" * 63,
        owner="u" * 36,
        role=StorageRole.trainer,
        folder=uri,
        readable=[uri, uri],
        holder="p" * 253,
        ends=datetime(2026, 1, 1, tzinfo=UTC),
    )
    order = order_of(signed_text.sign(grant, b"k" * 32), count=MAX_RUNS, policies=uri)
    assert len(for_trainer(order).model_dump_json(by_alias=True)) < SECRET_BYTES / 2
