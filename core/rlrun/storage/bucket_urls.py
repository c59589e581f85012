"""Bucket URLs as boto3 uses them in requests. Its presigned URLs have another host in some regions."""

from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config

from rlrun.api.base.addressing_style import AddressingStyle, addressing_problem
from rlrun.storage.errors import StoreError


def boto_style(style: AddressingStyle, endpoint_url: str | None) -> str:
    """Return boto3's name of the style. AWS has a DNS name for each bucket, other servers rarely."""
    return "auto" if style == AddressingStyle.path and not endpoint_url else str(style)


def refuse_other_styles(client: Any, style: AddressingStyle, endpoint_url: str | None) -> None:
    """Make requests for a bucket that cannot be addressed in this style raise StoreError.

    boto3 would address it by path instead.
    """

    def check(params: dict[str, Any], **_: object) -> None:
        if problem := addressing_problem(style, endpoint_url, str(params.get("Bucket", ""))):
            raise StoreError(problem)

    client.meta.events.register("provide-client-params.s3", check)


class _Written(Exception):
    """The client library has written the URL of a request, which is not sent."""


class BucketUrls:
    """URLs of the buckets at one endpoint, by a client that sends nothing."""

    def __init__(
        self,
        session: boto3.session.Session,
        endpoint_url: str | None,
        region: str,
        style: AddressingStyle = AddressingStyle.path,
    ) -> None:
        config = Config(s3={"addressing_style": boto_style(style, endpoint_url)}, signature_version=UNSIGNED)
        self._s3: Any = session.client("s3", endpoint_url=endpoint_url or None, region_name=region, config=config)
        refuse_other_styles(self._s3, style, endpoint_url)
        self._s3.meta.events.register("request-created.s3", _stop)
        self._known: dict[str, str] = {}

    def of(self, bucket: str) -> str:
        """Return the URL of a bucket, without a slash at its end. Raises StoreError if it has none in this style."""
        if bucket not in self._known:
            try:
                self._s3.get_object(Bucket=bucket, Key="x")
            except _Written as written:
                self._known[bucket] = str(written).partition("?")[0].removesuffix("/x")
        return self._known[bucket]


def _stop(request: Any, **_: object) -> None:
    raise _Written(request.url)
