"""Bucket URLs as boto3 uses them in requests. Its presigned URLs have another host in some regions."""

from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config


def addressing_style(endpoint_url: str | None) -> str:
    """Return boto3's style of URLs: servers other than AWS rarely have a DNS name per bucket."""
    return "path" if endpoint_url else "auto"


class _Written(Exception):
    """The client library has written the URL of a request, which is not sent."""


class BucketUrls:
    """URLs of the buckets at one endpoint, by a client that sends nothing."""

    def __init__(self, session: boto3.session.Session, endpoint_url: str | None, region: str) -> None:
        config = Config(s3={"addressing_style": addressing_style(endpoint_url)}, signature_version=UNSIGNED)
        self._s3: Any = session.client("s3", endpoint_url=endpoint_url or None, region_name=region, config=config)
        self._s3.meta.events.register("request-created.s3", _stop)
        self._known: dict[str, str] = {}

    def of(self, bucket: str) -> str:
        """Return the URL of a bucket, without a slash at its end."""
        if bucket not in self._known:
            try:
                self._s3.get_object(Bucket=bucket, Key="x")
            except _Written as written:
                self._known[bucket] = str(written).partition("?")[0].removesuffix("/x")
        return self._known[bucket]


def _stop(request: Any, **_: object) -> None:
    raise _Written(request.url)
