"""Downloads policies from the trainer while S3 is unreachable, and verifies them against the same digests.

A request with a short timeout detects that S3 is unreachable. The next request to S3 follows after a pause, so that an
outage does not delay every step.
"""

import asyncio
import hashlib
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path, PurePosixPath

import aiohttp
from rlrun.api.base.received import InputInvalid, parse
from rlrun.service.backoff import Backoff
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import MAX_MANIFEST_BYTES, FileEntry, Manifest
from rlrun.storage.store import NotFound, Store, Unreachable

log = logging.getLogger(__name__)

MANIFEST_SECONDS = 3.0
"""Timeout in seconds for S3 to deliver a manifest of a few hundred bytes."""
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0
"""Maximum pause in seconds between two requests to an unreachable S3."""
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""Maximum pause in seconds between two chunks from the trainer."""
CHUNK = 1024**2


class PolicyUnavailable(Exception):
    """Raised if a policy cannot be downloaded from the trainer. The message says why."""


class TrainerFallback:
    """Downloads policies from S3 or from the trainer, and records whether S3 responds. Times are in seconds."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        source: Store,
        clock: Callable[[], float] = time.monotonic,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` are added to each request to the trainer. Later changes of the mapping apply to later requests."""
        self._http = http
        self._headers = headers
        self._source = source
        self._clock = clock
        self._pause = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        self._pending_request: asyncio.Future[Manifest | None] | None = None
        """Abandoned request to S3 that still occupies one of the few threads, or None."""

    @property
    def s3_unreachable(self) -> bool:
        """True if S3 recently failed to respond, so that policies must be downloaded from the trainer."""
        return not self._pause.open(self._clock())

    async def from_s3(self, uri: S3Uri, dest: Path, check: Callable[[Manifest], None]) -> Manifest:
        """Download the policy from S3, if S3 delivers its manifest in time.

        `check` raises ProblemError for a manifest whose files are too large. Raises StoreError: Unreachable, NotFound
        if the policy has not arrived yet, or another S3 error.
        """
        try:
            manifest = await self._read_manifest(uri)
            self._pause.record_success()
            if manifest is None:
                raise NotFound(f"{uri} is not in S3 yet")
            check(manifest)
            return await asyncio.to_thread(self._source.download, uri, dest, manifest)
        except Unreachable:
            self._record_failure()
            raise

    async def fetch(
        self, url: str, dest: Path, fits: Callable[[Manifest], bool], check: Callable[[Manifest], None]
    ) -> Manifest:
        """Download the policy from `url`, its folder on the trainer, to `dest`, which never contains partial or
        unverified files.

        `fits` returns True if a manifest belongs to the policy. `check` has the same meaning as in `from_s3`. Raises
        PolicyUnavailable, or OSError if the files cannot be written.
        """
        temporary = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=f".{dest.name}-", dir=dest.parent))
        try:
            async with self._get(f"{url}/{MANIFEST}") as answer:
                text = await _read_at_most(_check_status(answer), MAX_MANIFEST_BYTES)
            manifest = parse(Manifest, text, f"{url}/{MANIFEST}")
            if not fits(manifest):
                raise PolicyUnavailable(f"the weights at {url} do not match the digest in the policy's name")
            check(manifest)
            for entry in manifest.files:
                async with self._get(f"{url}/{entry.name}") as answer:
                    await _save(_check_status(answer), entry, _place(entry, temporary))
            await asyncio.to_thread(_put_in_place, temporary, dest, manifest)
        except (TimeoutError, aiohttp.ClientError, InputInvalid) as error:
            raise PolicyUnavailable(f"{url}: {error or type(error).__name__}") from error
        finally:
            await asyncio.to_thread(shutil.rmtree, temporary, True)
        return manifest

    def _get(self, url: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        return self._http.get(url, headers=self._headers, timeout=limits, allow_redirects=False)

    async def _read_manifest(self, uri: S3Uri) -> Manifest | None:
        if self._pending_request is not None:
            raise Unreachable("S3 has not responded to an earlier request yet")
        request = asyncio.ensure_future(asyncio.to_thread(self._source.read_manifest, uri))
        await asyncio.wait({request}, timeout=MANIFEST_SECONDS)
        if not request.done():
            self._pending_request = request
            request.add_done_callback(self._late)
            raise Unreachable(f"S3 has not responded for {MANIFEST_SECONDS:g} s")
        return request.result()

    def _late(self, request: "asyncio.Future[Manifest | None]") -> None:
        self._pending_request = None
        if not request.cancelled() and request.exception() is None:
            self._pause.record_success()

    def _record_failure(self) -> None:
        self._pause.record_failure(self._clock())
        log.warning("S3 is unreachable. Retrying in %.0f s.", self._pause.pause)


async def _save(answer: aiohttp.ClientResponse, entry: FileEntry, path: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        async for chunk in answer.content.iter_chunked(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if size > entry.size:
                break  # A response without end would fill the disk.
            file.write(chunk)
    if (size, digest.hexdigest()) != (entry.size, entry.sha256):
        raise PolicyUnavailable(f"{answer.url} does not match its manifest")


def _check_status(answer: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
    if answer.status != 200:
        raise PolicyUnavailable(f"{answer.url} returned status {answer.status}")
    return answer


async def _read_at_most(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_any():
        data += chunk
        if len(data) > limit:
            raise PolicyUnavailable(f"{answer.url} is larger than {limit} bytes")
    return bytes(data)


def _place(entry: FileEntry, temporary: Path) -> Path:
    parts = PurePosixPath(entry.name)
    if parts.is_absolute() or ".." in parts.parts:
        raise PolicyUnavailable(f"a manifest names a file outside its folder: {entry.name!r}")
    path = temporary / parts
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _put_in_place(temporary: Path, dest: Path, manifest: Manifest) -> None:
    text = manifest.model_dump_json(by_alias=True, exclude_none=True, indent=1)
    (temporary / MANIFEST).write_text(text, encoding="utf-8")
    temporary.chmod(0o755)
    shutil.rmtree(dest, ignore_errors=True)
    temporary.rename(dest)
