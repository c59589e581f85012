"""URLs of buckets, compared with those of the requests that the store sends."""

from typing import Any

import pytest
from rlrun.storage.boto_session import new_session
from rlrun.storage.bucket_urls import BucketUrls
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store


class Seen(Exception):
    """The request is not sent."""


def url_of_request(endpoint: str | None, region: str, bucket: str) -> str:
    store = Store(
        endpoint_url=endpoint, region=region, access_key_id="id", secret_access_key="key", use_environment=False
    )

    def stop(request: Any, **_: object) -> None:
        raise Seen(request.url)

    store._s3.meta.events.register("request-created.s3", stop)
    with pytest.raises(Seen) as seen:
        store.get_bytes(S3Uri(bucket, "a/b"))
    return str(seen.value)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        (None, "https://bucket.s3.eu-west-1.amazonaws.com"),
        ("http://s3:8333", "http://s3:8333/bucket"),
        ("https://minio.example/s3/", "https://minio.example/s3/bucket"),
    ],
)
def test_a_server_other_than_aws_needs_no_name_per_bucket(endpoint: str | None, expected: str) -> None:
    assert BucketUrls(new_session(use_environment=False), endpoint, "eu-west-1").of("bucket") == expected


@pytest.mark.parametrize("bucket", ["bucket", "my.bucket"])
@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        (None, "us-east-1"),
        (None, "eu-west-1"),
        (None, "cn-north-1"),
        ("http://s3:8333", "us-east-1"),
        ("https://minio.example/s3/", "eu-west-1"),
    ],
)
def test_they_are_those_of_requests(endpoint: str | None, region: str, bucket: str) -> None:
    urls = BucketUrls(new_session(use_environment=False), endpoint, region)
    assert f"{urls.of(bucket)}/a/b" == url_of_request(endpoint, region, bucket)
