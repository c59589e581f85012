"""Test of the S3 server: does it refuse headers that a signature does not cover? At the start and every hour."""

import asyncio
import contextlib
import hashlib
import io
import logging
import tarfile
import uuid
from collections.abc import Awaitable, Callable, Mapping

from botocore import UNSIGNED
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config
from rlrun.protocol.storage_access import PAYLOAD_HASH
from rlrun.storage.boto_session import new_session
from rlrun.storage.errors import NO_RESPONSE_ERRORS, StoreError
from rlrun.storage.layout import PROBE_FOLDER, S3Uri
from rlrun.storage.store import DEFAULT_REGION, Store

from rlrun_server.signing.credentials import CredentialsMissing
from rlrun_server.signing.signer import COPY_SOURCE, S3Signer
from rlrun_server.signing.store_safety import (
    Answers,
    Attempt,
    Inconclusive,
    SigningMethod,
    SigningVerdict,
    StoreSafety,
    decide,
    is_safe,
)

log = logging.getLogger(__name__)

PERIOD_SECONDS = 3600.0
RETRY_SECONDS = 30.0
"""Pause after a test without a verdict, or with the verdict that nothing is safe."""
CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
SOURCE, EXTRACTED = "plain", "extracted"
FILES: Mapping[Attempt, str] = {
    Attempt.plain: SOURCE,
    Attempt.copy: "copy",
    Attempt.extract: "archive.tar",
    Attempt.metadata: "metadata",
}
"""Object of each attempt, in the folder of the test."""

Send = Callable[[str, str, Mapping[str, str], bytes], int]
"""Sends a request (method, URL, headers, body) and returns the status, 0 without a response. It may block."""


def http_sender(endpoint_url: str | None, region: str | None) -> Send:
    """Return how requests are sent: with the proxies and certificates of boto3, each once and with a deadline."""
    config = Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, signature_version=UNSIGNED)
    region = region or DEFAULT_REGION
    client = new_session().client("s3", endpoint_url=endpoint_url or None, region_name=region, config=config)
    session = client._endpoint.http_session

    def send(method: str, url: str, headers: Mapping[str, str], body: bytes) -> int:
        sent = {**headers, "content-length": str(len(body))}
        try:
            return int(session.send(AWSPreparedRequest(method, url, sent, body, False)).status_code)
        except NO_RESPONSE_ERRORS:
            return 0

    return send


class StoreProbe:
    """Sends the attempts of one bucket."""

    def __init__(self, signer: S3Signer, send: Send, root: S3Uri, store: Store) -> None:
        """`store` deletes what the test has written."""
        self._signer = signer
        self._send = send
        self._root = root
        self._store = store

    async def run(self) -> SigningVerdict:
        """Return how requests may be signed. Raises Inconclusive."""
        if not self._root.bucket:
            raise Inconclusive("RLRUN_SERVER_BUCKET is not set")
        try:
            await self._signer.renew()
            return await asyncio.to_thread(self._run)
        except (CredentialsMissing, StoreError) as error:
            raise Inconclusive(str(error)) from error

    def _run(self) -> SigningVerdict:
        folder = self._root / PROBE_FOLDER / uuid.uuid4().hex
        answers = {}
        # Some servers make the bucket of an object that is written, and a wrong name would not be noticed.
        self._store.check(folder)
        try:
            for method in SigningMethod:
                answers[method] = self._attempts(method, folder)
                if is_safe(method, answers[method]):
                    break
            return decide(answers)
        finally:
            with contextlib.suppress(StoreError):
                self._store.delete_prefix(folder)

    def _attempts(self, method: SigningMethod, folder: S3Uri) -> Answers:
        extra = {
            Attempt.plain: {},
            Attempt.copy: {COPY_SOURCE: f"/{folder.bucket}/{folder.key}/{SOURCE}"},
            Attempt.extract: {"x-amz-meta-snowball-auto-extract": "true"},
            Attempt.metadata: {"x-amz-meta-rlrun": "unsigned"},
        }
        answers: dict[Attempt, int] = {}
        for attempt, headers in extra.items():
            body = b"" if attempt is Attempt.copy else _archive(folder.key)
            answers[attempt] = self._put(method, folder / FILES[attempt], headers, body)
        return answers

    def _put(self, method: SigningMethod, uri: S3Uri, unsigned: Mapping[str, str], body: bytes) -> int:
        url = f"{self._signer.base_url(uri.bucket)}/{uri.key}"
        digest = {PAYLOAD_HASH: hashlib.sha256(body).hexdigest()}
        if method is SigningMethod.query:
            return self._send("PUT", f"{url}?{self._signer.sign_by_query('PUT', url, digest)}", unsigned, body)
        return self._send("PUT", url, {**self._signer.sign("PUT", url, digest), **unsigned}, body)


def _archive(folder: str) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(f"{folder}/{EXTRACTED}"), io.BytesIO())
    return data.getvalue()


async def follow(
    probe: Callable[[], Awaitable[SigningVerdict]],
    safety: StoreSafety,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Test until cancelled, and record each verdict."""
    while True:
        pause = RETRY_SECONDS
        try:
            verdict = await probe()
            safety.record(verdict)
            if verdict.method is None:
                log.error("requests of runs and users are not signed: %s", verdict.problem)
            else:
                log.info("requests of runs and users are signed in %s", verdict.method)
                pause = PERIOD_SECONDS
        except Inconclusive as error:
            safety.record_trouble(str(error))
            log.warning("the test of the S3 server has no result: %s", error)
        except Exception as error:
            safety.record_trouble(type(error).__name__)
            log.exception("the test of the S3 server failed")
        await sleep(pause)
