"""Data transfer with requests signed by rlrun-server, over the connections of boto3's client but without its layers.

These layers take 1 ms of the 1.3 ms of CPU time per request. Without them, requests signed by rlrun-server are as fast
as locally signed ones. Only three responses are handled here: success, a missing object, and an object that exists but
must not be replaced. After any other response, the caller repeats the request through the client, which has retries and
error handling.

Over TLS the signature of a part does not cover its bytes. The parts of an object can thus be signed in one request
before they are read, and are hashed only once, for the manifest, which every download verifies.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ClientError
from botocore.response import StreamingBody

from rlrun.protocol.storage_access import MAX_URL, PAYLOAD_HASH, RequestToSign
from rlrun.storage.bucket_urls import BucketUrls
from rlrun.storage.errors import NO_RESPONSE_ERRORS, ObjectTooLarge
from rlrun.storage.layout import S3Uri
from rlrun.storage.remote_signer import RequestSigner

NO_BODY = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
"""Placeholder for the digest of a body that the signature does not cover."""
ONCE = {"if-none-match": "*"}
"""Header of a request that stores an object only if none exists under its key."""
PRECONDITION_FAILED = 412
MISSING = b"<Code>NoSuchKey</Code>"
NO_RESPONSE = 0
"""Placeholder status for a missing or incomplete response."""
REFUSED_STATUSES = (400, 401, 403)
"""Statuses of a refused signature. AWS refuses an expired token with 400."""
ERROR_BYTES = 64 * 1024
"""Maximum number of bytes that are read of an error body. A larger one raises ObjectTooLarge."""
PIECE_BYTES = 8 * 1024
"""Number of bytes per read if each read is reported as progress. Small, because a read returns only when all its bytes
have arrived.
"""
PAUSE_SECONDS = 30.0
"""Seconds for which all requests go through boto3's client after a response that is not handled here."""


class DirectRequests:
    """Client that transfers objects and parts of objects without boto3's layers. Thread-safe.

    In addition to the exceptions that they document, methods raise BotoCoreError and the signer's StoreError.
    """

    def __init__(
        self, client: Any, urls: BucketUrls, signer: RequestSigner, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Use the client's own session, with its proxies, certificates, time limits and connections.
        self._session = client._endpoint.http_session
        self._urls = urls
        self._signer = signer
        self._clock = clock
        self._paused_until = -math.inf

    def describe(
        self, method: str, uri: S3Uri, digest: str = NO_BODY, query: str = "", *, once: bool = False
    ) -> RequestToSign | None:
        """Return the unsigned request for an object, or None if its URL is too long to be signed.

        If `once` is true, S3 stores the object only if it does not exist.
        """
        url = f"{self._urls.of(uri.bucket)}/{quote(uri.key, safe='/~')}{query}"
        headers = {PAYLOAD_HASH: digest} | (ONCE if once else {})
        return None if len(url) > MAX_URL else RequestToSign(method=method, url=url, headers=headers)

    def describe_part(self, uri: S3Uri, upload_id: str, number: int, data: bytes | None = None) -> RequestToSign | None:
        """Return the unsigned request for a part of an object.

        Returns None if the URL is too long, or if `data` is None but the signature must cover it.
        """
        query = f"?partNumber={number}&uploadId={quote(upload_id, safe='~')}"
        if _is_encrypted(self._urls.of(uri.bucket)):
            return self.describe("PUT", uri, UNSIGNED, query)
        return None if data is None else self.describe("PUT", uri, hashlib.sha256(data).hexdigest(), query)

    def get(self, uri: S3Uri, limit: int) -> bytes | None:
        """Return the bytes of the object, or None if the direct request did not succeed.

        Raises ClientError if the object does not exist, ObjectTooLarge if it has more than `limit` bytes.
        """
        status, body, _ = self._send(self.describe("GET", uri), limit=limit, place=uri)
        if status == 404 and MISSING in body:
            raise ClientError({"Error": {"Code": "NoSuchKey"}}, "GetObject")
        return body if status == 200 else None

    def put(self, uri: S3Uri, data: bytes, digest: str | None = None, *, once: bool = False) -> bool:
        """Write an object. Returns whether S3 has stored it.

        `digest` is the SHA-256 of the data in hexadecimal, if known. If `once` is true and the object already exists,
        raises ClientError.
        """
        digest = digest or hashlib.sha256(data).hexdigest()
        status, body, _ = self._send(self.describe("PUT", uri, digest, once=once), data)
        if status == PRECONDITION_FAILED:
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "PutObject")
        # An HTML page is the response of a proxy, which the client handles.
        return status == 200 and b"<html" not in body.lower()

    def sign_ahead(self, described: Iterable[RequestToSign | None]) -> None:
        """Request signatures for up to MAX_BATCH upcoming requests. Ignores None, which `describe` returns for a
        request that cannot be signed.
        """
        asked = [request for request in described if request is not None]
        if asked:
            self._signer.sign_ahead(asked)

    def put_part(self, uri: S3Uri, upload_id: str, number: int, data: bytes) -> str | None:
        """Upload a part. Returns its ETag, or None if S3 did not store it."""
        status, _, headers = self._send(self.describe_part(uri, upload_id, number, data), data)
        return headers.get("etag") if status == 200 else None

    def _send(
        self,
        asked: RequestToSign | None,
        data: bytes | None = None,
        *,
        limit: int = ERROR_BYTES,
        place: S3Uri | None = None,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Send a request. Returns status, body and headers. Raises ObjectTooLarge if the body has more than `limit`
        bytes.
        """
        if asked is None or self._clock() < self._paused_until:
            return NO_RESPONSE, b"", {}
        signed = self._signer.signature_for(asked)
        conditions = {name: value for name, value in asked.headers.items() if name in ONCE}
        headers, url = conditions | signed.headers, signed.signed_url(asked.url)
        if data is not None:
            headers["content-length"] = str(len(data))
        try:
            response = self._session.send(AWSPreparedRequest(asked.method, url, headers, data, True))
            stream = StreamingBody(response.raw, response.headers.get("content-length"))
            largest = limit if response.status_code == 200 else ERROR_BYTES
            body = read_body(stream, largest, place or asked.url)
        except NO_RESPONSE_ERRORS:
            return NO_RESPONSE, b"", {}
        if response.status_code not in (200, 404, PRECONDITION_FAILED):
            self._paused_until = self._clock() + PAUSE_SECONDS
        if response.status_code in REFUSED_STATUSES:
            self._signer.forget()
        return int(response.status_code), body, response.headers


def read_body(body: Any, limit: int, place: object, on_data: Callable[[], None] | None = None) -> bytes:
    """Read the body of an S3 response, and call `on_data` before and after each piece.

    Raises ObjectTooLarge beyond `limit` bytes, without reading the rest, and errors of botocore.
    """
    pieces: list[bytes] = []
    missing = limit + 1
    while missing > 0:
        if on_data is not None:
            on_data()
        piece: bytes = body.read(missing if on_data is None else min(missing, PIECE_BYTES))
        if not piece:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.append(piece)
        missing -= len(piece)
    body.close()
    raise ObjectTooLarge(place, limit)


def _is_encrypted(url: str) -> bool:
    return url.startswith("https:")
