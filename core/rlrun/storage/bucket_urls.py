"""Bucket URLs as boto3 uses them in requests. They are not taken from boto3's presigned URLs, which have a different
host in some regions.
"""

from typing import Any

import boto3
from botocore import UNSIGNED

from rlrun.api.base.s3_connection import S3Connection
from rlrun.storage.boto_session import s3_client
from rlrun.storage.errors import StoreError


def refuse_other_styles(client: Any, connection: S3Connection) -> None:
    """Make the client raise StoreError for a bucket that cannot be addressed in the connection's addressing style.

    boto3 would address such a bucket by path instead.
    """

    def check(params: dict[str, Any], **_: object) -> None:
        if problem := connection.problem_of(str(params.get("Bucket", ""))):
            raise StoreError(problem)

    client.meta.events.register("provide-client-params.s3", check)


class _Written(Exception):
    """Raised when the client library has built the URL of a request, to prevent the request from being sent."""


class BucketUrls:
    """Builder of bucket URLs at one endpoint, using a botocore client that sends no requests."""

    def __init__(self, session: boto3.session.Session, connection: S3Connection) -> None:
        self._s3: Any = s3_client(session, connection, signature_version=UNSIGNED)
        refuse_other_styles(self._s3, connection)
        self._s3.meta.events.register("request-created.s3", _stop)
        self._known: dict[str, str] = {}

    def of(self, bucket: str) -> str:
        """Return the URL of a bucket, without a trailing slash. Raises StoreError if the bucket cannot be addressed in
        the connection's style.
        """
        if bucket not in self._known:
            try:
                self._s3.get_object(Bucket=bucket, Key="x")
            except _Written as written:
                self._known[bucket] = str(written).partition("?")[0].removesuffix("/x")
        return self._known[bucket]


def _stop(request: Any, **_: object) -> None:
    raise _Written(request.url)
