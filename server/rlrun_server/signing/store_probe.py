"""Tests whether the S3 server rejects headers that a signature does not cover, and supports conditional writes. The
test runs at startup and every hour, and again earlier if a test has no result or an unconfirmed one (`store_safety`).
"""

import asyncio
import contextlib
import hashlib
import io
import logging
import tarfile
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from botocore import UNSIGNED
from botocore.awsrequest import AWSPreparedRequest
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol.storage_access import PAYLOAD_HASH
from rlrun.storage.boto_session import new_session, s3_client
from rlrun.storage.errors import NO_RESPONSE_ERRORS, AlreadyExists, NotImplementedByStore, StoreError, Unreachable
from rlrun.storage.layout import PROBE_FOLDER, S3Uri
from rlrun.storage.store import RequestLimits, Store

from rlrun_server.signing.credentials import CredentialsMissing
from rlrun_server.signing.signer import COPY_SOURCE, S3Signer
from rlrun_server.signing.store_safety import (
    Answers,
    Inconclusive,
    ProbeRefused,
    ProbeRequest,
    SigningMethod,
    SigningVerdict,
    StoreSafety,
    decide,
    is_safe,
)

log = logging.getLogger(__name__)

LIMITS = RequestLimits(connect_seconds=3.0, read_seconds=10.0, tries=1)
"""Limits of each request. A failed request is not retried. Instead, the whole test is repeated."""
TEST_SECONDS = 60.0
LEFT_SECONDS = 3600.0
"""Age in seconds after which the folder of another test counts as left over."""
MAX_LISTED, MAX_COLLECTED = 1000, 5
"""Maximum number of leftover objects that a test lists, and of leftover folders that it deletes."""
SOURCE, EXTRACTED, ONCE = "plain", "extracted", "once"
NO_CONDITIONS = (
    "the S3 server does not implement If-None-Match, so it cannot store packages, checkpoints and adapters. Upgrade "
    "it, or use a server that supports conditional writes"
)
FILES: Mapping[ProbeRequest, str] = {
    ProbeRequest.plain: SOURCE,
    ProbeRequest.copy: "copy",
    ProbeRequest.extract: "archive.tar",
    ProbeRequest.metadata: "metadata",
}
"""File name of each request, in the folder of the test."""

Send = Callable[[str, str, Mapping[str, str], bytes], int]
"""Function that sends a request (method, URL, headers, body) and returns the status, or 0 if there is no response. It
may block.
"""


def http_sender(connection: S3Connection) -> Send:
    """Return a function that sends each request once, with a deadline and with boto3's proxies and certificates."""
    client = s3_client(
        new_session(),
        connection,
        connect_timeout=LIMITS.connect_seconds,
        read_timeout=LIMITS.read_seconds,
        signature_version=UNSIGNED,
    )
    session = client._endpoint.http_session

    def send(method: str, url: str, headers: Mapping[str, str], body: bytes) -> int:
        sent = {**headers, "content-length": str(len(body))}
        try:
            return int(session.send(AWSPreparedRequest(method, url, sent, body, False)).status_code)
        except NO_RESPONSE_ERRORS:
            return 0

    return send


class StoreProbe:
    """Tests whether an S3 server verifies signatures strictly enough to isolate tenants, with objects in one bucket."""

    def __init__(
        self,
        signer: S3Signer,
        send: Send,
        root: S3Uri,
        store: Store,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`send` sends the requests of the signature test, and `store`, which has LIMITS, all other requests."""
        self._signer = signer
        self._send = send
        self._root = root
        self._store = store
        self._now = now
        self._threads = ThreadPoolExecutor(1, "probe")

    def close(self) -> None:
        """Stop the thread without waiting for S3."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self) -> SigningVerdict:
        """Run the test and return its verdict. Raises Inconclusive."""
        if not self._root.bucket:
            raise ProbeRefused("RLRUN_SERVER_BUCKET is not set")
        try:
            await self._signer.renew()
            work = asyncio.get_running_loop().run_in_executor(self._threads, self._run)
            return await asyncio.wait_for(work, TEST_SECONDS)
        except TimeoutError as error:
            raise Inconclusive(f"the test did not end within {TEST_SECONDS:.0f} s") from error
        except (CredentialsMissing, Unreachable) as error:
            raise Inconclusive(str(error)) from error
        except StoreError as error:
            raise ProbeRefused(str(error)) from error

    def _run(self) -> SigningVerdict:
        folder = self._root / PROBE_FOLDER / uuid.uuid4().hex
        answers = {}
        # Some servers create the bucket when an object is written, so a wrong bucket name would go unnoticed.
        self._store.check(folder)
        try:
            for method in SigningMethod:
                answers[method] = self._statuses(method, folder)
                if method is SigningMethod.headers and not 200 <= answers[method][ProbeRequest.plain] < 300:
                    # Repeat the request with the client, whose error contains S3's message.
                    self._store.put_bytes(folder / SOURCE, _archive(folder.key))
                if is_safe(method, answers[method]):
                    break
            verdict = decide(answers)
            return verdict if verdict.method is None else replace(verdict, lack=self._lack(folder / ONCE))
        finally:
            with contextlib.suppress(StoreError):
                self._store.delete_prefix(folder)
                self._collect()

    def _lack(self, uri: S3Uri) -> str:
        """Return a message if the server rejects conditional writes as not implemented, else an empty string. If the
        server ignores the condition, only logs a warning. Raises StoreError.
        """
        try:
            for _ in range(2):
                self._store.put_bytes(uri, b"", replace=False)
        except NotImplementedByStore:
            return NO_CONDITIONS
        except AlreadyExists:
            return ""
        # Trainers may replace files of their own artifacts, which the digest reveals (docs/security.md).
        log.warning("the S3 server ignores If-None-Match: trainers can replace files of their artifacts")
        return ""

    def _collect(self) -> None:
        """Delete leftover folders of killed tests."""
        place = self._root / PROBE_FOLDER
        newest: dict[str, datetime] = {}
        for stored in islice(self._store.walk(place), MAX_LISTED):
            name = stored.key.removeprefix(f"{place.key}/").partition("/")[0]
            newest[name] = max(stored.modified, newest.get(name, stored.modified))
        # Another replica may test at the same time.
        before = self._now() - timedelta(seconds=LEFT_SECONDS)
        for name in [name for name, modified in newest.items() if modified < before][:MAX_COLLECTED]:
            self._store.delete_prefix(place / name)

    def _statuses(self, method: SigningMethod, folder: S3Uri) -> Answers:
        extra = {
            ProbeRequest.plain: {},
            ProbeRequest.copy: {COPY_SOURCE: f"/{folder.bucket}/{folder.key}/{SOURCE}"},
            ProbeRequest.extract: {"x-amz-meta-snowball-auto-extract": "true"},
            ProbeRequest.metadata: {"x-amz-meta-rlrun": "unsigned"},
        }
        answers: dict[ProbeRequest, int] = {}
        for request, headers in extra.items():
            body = b"" if request is ProbeRequest.copy else _archive(folder.key)
            answers[request] = self._put(method, folder / FILES[request], headers, body)
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
    """Repeat the test until cancelled, and record each verdict."""
    while True:
        try:
            verdict = await probe()
        except Inconclusive as error:
            safety.record_trouble(str(error), is_refusal=isinstance(error, ProbeRefused))
            log.warning("the test of the S3 server was inconclusive: %s", error)
        except Exception as error:
            safety.record_trouble(type(error).__name__)
            log.exception("the test of the S3 server failed")
        else:
            safety.record(verdict)
            if verdict.method is None:
                now = "not signed" if safety.problem else "signed until further tests"
                log.error("requests of runs and users are %s: %s", now, verdict.problem)
            else:
                now = "not signed until further tests" if safety.problem else f"signed in {verdict.method}"
                log.info("the S3 server is safe: requests of runs and users are %s", now)
                if verdict.lack:
                    log.error("%s", verdict.lack)
        await sleep(safety.pause)
