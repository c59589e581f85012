"""FakeS3 answers as S3 does, of which SeaweedFS is an original."""

import uuid

import pytest
from rlrun.storage.store import Store

from tests.support.contracts.s3_contract import CASES, Bucket
from tests.support.fake_s3 import FakeS3
from tests.support.seaweedfs import S3Server


@pytest.mark.parametrize("case", CASES)
def test_the_fake_answers_as_the_contract_says(case: str) -> None:
    CASES[case](Bucket(FakeS3(), "bucket", "folder"))


@pytest.mark.parametrize("case", CASES)
def test_seaweedfs_answers_as_the_contract_says(case: str, store: Store, s3_server: S3Server) -> None:
    CASES[case](Bucket(store._s3, s3_server.bucket, f"contract/{uuid.uuid4().hex}"))
