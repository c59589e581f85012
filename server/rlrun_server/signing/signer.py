"""Signatures of S3 requests with the platform's credentials (AWS Signature Version 4), and an S3 client that signs in
this process.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol.storage_access import PAYLOAD_HASH, RequestToSign, SignedHeaders
from rlrun.storage.boto_session import new_session
from rlrun.storage.bucket_urls import BucketUrls
from rlrun.storage.errors import AccessDenied
from rlrun.storage.remote_signer import RequestSigner
from rlrun.storage.store import DEFAULT_LIMITS, RequestLimits, Store
from typing_extensions import override

from rlrun_server.signing.credentials import CredentialsMissing, CredentialSource

COPY_SOURCE = "x-amz-copy-source"
VALID_SECONDS = 900
RESULT = ("authorization", "x-amz-date", "x-amz-security-token", PAYLOAD_HASH)


class _GivenDigest(S3SigV4Auth):  # type: ignore[misc]
    """Signature that covers the digest from the client, because the server does not receive the body."""

    @override
    def payload(self, request: Any) -> str:
        return str(request.context["digest"])


class _QueryWithoutCopy(S3SigV4QueryAuth):  # type: ignore[misc]
    """Signature in the URL that also covers an empty copy source (`x-amz-copy-source`), which becomes a parameter of
    the URL.

    MinIO looks for signed headers in the query if the request lacks them. If a tenant adds this header later, the
    signature is invalid.
    """

    @override
    def headers_to_sign(self, request: Any) -> Any:
        headers = super().headers_to_sign(request)
        headers[COPY_SOURCE] = ""
        return headers


class S3Signer:
    """Signs requests with the credentials in `folder`, one file per AWS_* variable, or from boto3's credential chain.

    A signature is valid for 15 minutes, but not longer than temporary credentials.
    """

    def __init__(
        self,
        connection: S3Connection,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = new_session()
        self._region = connection.region
        self._folder = folder
        self._source = CredentialSource(self._credentials, clock)
        self._urls = BucketUrls(self._session, connection)

    def base_url(self, bucket: str) -> str:
        """Return the URL of a bucket as boto3 writes it, without a trailing slash. Raises StoreError."""
        return self._urls.of(bucket)

    async def renew(self) -> None:
        """Read the credentials again unless they were read a few seconds ago. Raises CredentialsMissing."""
        await self._source.renew()

    def sign(self, method: str, url: str, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that sign the request with the credentials of the last `renew`.

        Raises CredentialsMissing.
        """
        given = {name.lower(): value for name, value in headers.items()}
        request = AWSRequest(method=method, url=url, headers=given)
        request.context["digest"] = given[PAYLOAD_HASH]
        _GivenDigest(self._source.current(), "s3", self._region).add_auth(request)
        return {name: value for name, value in request.headers.items() if name.lower() in RESULT}

    def sign_by_query(self, method: str, url: str, headers: Mapping[str, str]) -> str:
        """Return query parameters that make the request valid without additional headers.

        The signature covers the given headers except PAYLOAD_HASH, but not the body. Raises CredentialsMissing.
        """
        given = {name.lower(): value for name, value in headers.items() if name.lower() != PAYLOAD_HASH}
        copied_from = f"{'&' if '?' in url else '?'}{COPY_SOURCE}="
        request = AWSRequest(method=method, url=url + copied_from, headers=given)
        _QueryWithoutCopy(self._source.current(), "s3", self._region, expires=VALID_SECONDS).add_auth(request)
        pairs = str(request.url).partition("?")[2].split("&")
        return "&".join(pair for pair in pairs if pair.lower().startswith("x-amz-"))

    def _credentials(self) -> ReadOnlyCredentials:
        try:
            credentials = read_credentials(self._folder) if self._folder is not None else None
            if credentials is None:
                provided = self._session.get_credentials()
                credentials = None if provided is None else provided.get_frozen_credentials()
        except Exception as error:
            # boto3's credential providers raise different exceptions for different services.
            raise CredentialsMissing(f"rlrun-server could not get S3 credentials: {error}") from error
        if credentials is None:
            raise CredentialsMissing(
                "rlrun-server has no S3 credentials: check s3.credentials in the chart's values, the Secret that it "
                "names, or the workload identity of rlrun-server's ServiceAccount"
            )
        return credentials


def read_credentials(folder: Path) -> ReadOnlyCredentials | None:
    """Return the credentials in a mounted Secret, or None if the Secret lacks the key id or the key."""

    def value(name: str) -> str | None:
        file = folder / name
        return file.read_text("utf-8").strip() or None if file.is_file() else None

    key_id, key = value("AWS_ACCESS_KEY_ID"), value("AWS_SECRET_ACCESS_KEY")
    return ReadOnlyCredentials(key_id, key, value("AWS_SESSION_TOKEN")) if key_id and key else None


class OwnSigner(RequestSigner):
    """Signer of the server's own requests, with the credentials of the last `S3Signer.renew`."""

    def __init__(self, signer: S3Signer, region: str) -> None:
        super().__init__(region)
        self._signer = signer

    @override
    def close(self) -> None:
        pass

    @override
    def sign_ahead(self, requests: Sequence[RequestToSign]) -> None:
        pass  # this process signs each request itself when it is sent

    @override
    def _ask(self, asked: RequestToSign) -> SignedHeaders:
        try:
            return SignedHeaders(headers=self._signer.sign(asked.method, asked.url, asked.headers))
        except CredentialsMissing as error:
            raise AccessDenied(str(error)) from error


def own_store(signer: S3Signer, connection: S3Connection, limits: RequestLimits = DEFAULT_LIMITS) -> Store:
    """Return the server's own S3 client. Raises StoreError."""
    return Store(connection, signer=OwnSigner(signer, connection.region), limits=limits)
