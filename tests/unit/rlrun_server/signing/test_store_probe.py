"""The test of the S3 server writes nothing where it has no bucket."""

from typing import Any

import pytest
from rlrun.storage.errors import BucketMissing
from rlrun.storage.layout import S3Uri
from rlrun_server.signing.signer import S3Signer
from rlrun_server.signing.store_probe import StoreProbe
from rlrun_server.signing.store_safety import Inconclusive


class WithoutBucket:
    def check(self, uri: S3Uri) -> None:
        raise BucketMissing(f"the bucket {uri.bucket} does not exist")

    def delete_prefix(self, uri: S3Uri) -> int:
        return 0


class Signer(S3Signer):
    def __init__(self) -> None:
        pass

    async def renew(self) -> None:
        pass

    def base_url(self, bucket: str) -> str:
        return f"http://s3/{bucket}"

    def sign(self, *_: Any, **__: Any) -> dict[str, str]:
        return {}


async def test_a_bucket_that_does_not_exist_is_not_written_to() -> None:
    """Some servers, such as SeaweedFS, make the bucket of an object that is written."""
    sent: list[str] = []

    def send(method: str, url: str, headers: Any, body: bytes) -> int:
        sent.append(f"{method} {url}")
        return 200 if "plain" in url else 403

    probe = StoreProbe(Signer(), send, S3Uri("never-made", ""), WithoutBucket())  # type: ignore[arg-type]
    with pytest.raises(Inconclusive, match="the bucket never-made does not exist"):
        await probe.run()
    assert sent == []
