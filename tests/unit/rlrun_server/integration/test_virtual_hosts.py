"""S3 servers that take the bucket from the host name only: all programs address it there, and sign that name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rlrun.api.base.addressing_style import AddressingStyle
from rlrun.protocol.storage_access import StorageRole
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store, StoreError

from tests.support.signed_s3 import AWS, BUCKET, MINIO, Dialect, SignedS3, signed_s3
from tests.support.signing_server import signing_server

RUN = S3Uri(BUCKET, "team/0123")
PACKAGE = S3Uri(BUCKET, "environments/team/echo/1.0/echo-1.0.whl")


@pytest.fixture
def s3() -> Iterator[SignedS3]:
    with signed_s3(replace(AWS, virtual_hosts_only=True)) as server:
        yield replace(server, server=replace(server.server, addressing_style=AddressingStyle.virtual))


@pytest.mark.parametrize("dialect", [AWS, MINIO], ids=["headers", "query"])
def test_processes_and_users_get_signatures_for_the_bucket_s_host(dialect: Dialect, tmp_path: Path) -> None:
    with signed_s3(replace(dialect, virtual_hosts_only=True)) as s3:
        place = replace(s3.server, addressing_style=AddressingStyle.virtual)
        with signing_server(place, tmp_path) as server:
            trainer = server.store(StorageRole.trainer, str(RUN))
            policy = RUN / "policy/v000001-abc"
            manifest = trainer.upload_artifact({"w~+1": b"1"}, policy, ArtifactKind.policy)
            assert trainer.download(policy, tmp_path / "back") == manifest
            assert trainer.list_files(policy) != []
            assert trainer.delete_prefix(policy) == 2
            user = server.user_store(server.user("ann", "create rlenvironments in team"))
            user.put_bytes(PACKAGE, b"wheel", replace=False)
            assert s3.objects == {PACKAGE.key: b"wheel", "environments/team/.owner": b""}


def test_a_store_with_a_key_finds_the_style_in_its_variables(s3: SignedS3) -> None:
    store = Store.from_variables(s3.server.environment)
    store.put_bytes(RUN / "metrics/x", b"1", replace=False)
    assert store.get_bytes(RUN / "metrics/x") == b"1"
    assert store.delete_prefix(RUN) == 1


def test_a_bucket_in_the_path_is_refused_there(s3: SignedS3) -> None:
    variables = {**s3.server.environment, "RLRUN_S3_ADDRESSING_STYLE": ""}
    with pytest.raises(StoreError, match=r"set s3\.addressingStyle in the chart to virtual"):
        Store.from_variables(variables).get_bytes(RUN / "metrics/x")
