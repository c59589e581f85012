"""SignedS3 accepts and refuses signatures as S3 does, of which SeaweedFS is an original."""

import pytest

from tests.support.contracts.s3_signature_contract import CASES
from tests.support.seaweedfs import S3Server
from tests.support.signed_s3 import AWS, MINIO, OLD_CEPH, Dialect, signed_s3


@pytest.mark.parametrize("dialect", [AWS, MINIO, OLD_CEPH], ids=["AWS", "MinIO", "Ceph"])
@pytest.mark.parametrize("case", CASES)
def test_the_fake_answers_as_the_contract_says(case: str, dialect: Dialect) -> None:
    error = CASES[case].error
    with signed_s3(dialect) as fake:
        assert CASES[case].send(fake.server, "one") == (403 if error else 200, error)
        assert fake.objects.keys() == (set() if error else {"one"})


@pytest.mark.parametrize("case", CASES)
def test_seaweedfs_answers_as_the_contract_says(case: str, s3_server: S3Server) -> None:
    error = CASES[case].error
    assert CASES[case].send(s3_server, "signature") == (403 if error else 200, error)
