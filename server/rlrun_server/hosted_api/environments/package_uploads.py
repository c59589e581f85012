"""Uploads of packages, authorized by a ticket in the URL, because clients send no API key with uploads.

The ticket is signed with keys that all replicas share. Before the server writes a file to S3, it checks size and
SHA-256 against the ticket, and that the file is a wheel.

A limited number of uploads have slots, at most one per namespace; others wait. A slow upload loses its slot to any
waiting upload. A long upload loses its slot to a waiting upload if the waiting upload's namespace has used the slots
for less time.
"""

import asyncio
import hashlib
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field
from rlrun.api.base.names import Text
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.protocol import signed_text
from starlette.requests import Request
from starlette.types import Message

from rlrun_server.hosted_api.environments.wheels import WheelInvalid, opened_wheel
from rlrun_server.rest.base.problems import RestError, invalid

TICKET_SECONDS = 900.0
UPLOAD_SECONDS = 120.0
MAX_UPLOADS = 3
"""Maximum number of concurrent uploads, each of which may need twice the size of a wheel in memory."""
MAX_WAITING = 32
"""Maximum number of uploads that wait for a slot."""
MAX_WAITING_OF_NAMESPACE = 2
WAIT_SECONDS = 20.0
"""Maximum time in seconds for which an upload waits for a slot. Clients time out after 30 s without data."""
POLL_SECONDS = 0.1
GRACE_SECONDS = 3.0
"""Seconds for which an upload keeps its slot regardless of its speed."""
MIN_RATE = 1024**2
"""Minimum rate in bytes per second. A slower upload loses its slot to a waiting one."""
PATIENCE_SECONDS = 10.0
"""Seconds after which a waiting upload may take the slot of a long upload."""
LONG_SECONDS = 20.0
"""Seconds after which an upload is considered long."""
USE_SECONDS = 600.0
"""Seconds for which past use of a slot counts against the upload's namespace."""
MAX_SOURCE = 64 * 1024**2
"""Maximum size of a source archive in bytes. Source archives are received but not stored."""


class UploadTicket(Schema):
    """Permission to upload one file, as signed text in the URL."""

    model_config = ConfigDict(extra="forbid")

    purpose: Literal["package-upload"] = "package-upload"
    """Distinguishes tickets from other texts signed with the same keys."""
    kind: Literal["wheel", "source"]
    namespace: Text
    owner: Text
    name: Text
    version: Text
    file: Text
    sha256: str = Field(max_length=64, pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)
    """Size in bytes, or 0 for a source archive, whose size is not announced."""
    expires: float
    """Expiry in seconds since 1970."""


@dataclass(eq=False)
class UploadSlot:
    """Upload that has a slot or waits for one."""

    namespace: str
    asked: float
    """Time at which the upload started to wait."""
    begun: float = 0.0
    """Time at which the upload got its slot."""
    received: int = 0
    """Number of received bytes."""
    is_complete: bool = False
    """True once the body has been received."""
    is_ended: bool = False
    """True if the upload has lost its slot."""
    _waits_for_client: asyncio.Timeout | None = None

    def counting(self, request: Request) -> Request:
        """Return a request that counts the received bytes of its body. Reading the body raises RestError if the upload
        has lost its slot.
        """

        async def receive() -> Message:
            try:
                async with asyncio.timeout(0 if self.is_ended else None) as self._waits_for_client:
                    message = await request.receive()
            except TimeoutError:
                if not self.is_ended:
                    raise
                detail = "The upload was too slow while others waited for a slot. Retry the command later."
                raise RestError(503, Reason.TOO_MANY_REQUESTS, detail) from None
            finally:
                self._waits_for_client = None
            self.received += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
            return message

        return Request(request.scope, receive)

    def end(self) -> None:
        """Take the slot away from the upload."""
        self.is_ended = True
        if self._waits_for_client is not None:
            self._waits_for_client.reschedule(asyncio.get_running_loop().time())

    def slow_rate(self, now: float) -> float | None:
        """Return the rate of a slow upload in bytes per second, or None if the upload is not slow."""
        seconds = now - self.begun
        if self.is_complete or seconds < GRACE_SECONDS or self.received >= MIN_RATE * seconds:
            return None
        return self.received / seconds


class PackageUploads:
    """Signs upload tickets, and limits concurrent uploads."""

    def __init__(
        self,
        keys: Callable[[], Sequence[bytes]],
        now: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keys` are shared by all replicas. `now` returns seconds since 1970, `clock` monotonic seconds for rates."""
        self._keys = keys
        self._now = now
        self._clock = clock
        self._open: set[UploadSlot] = set()
        self._waiting: dict[UploadSlot, None] = {}
        """Waiting uploads, in order."""
        self._ended: deque[tuple[float, str, float]] = deque()
        """End, namespace and duration of each use of a slot within the last USE_SECONDS."""

    @property
    def expires(self) -> float:
        """Expiry of a ticket issued now."""
        return self._now() + TICKET_SECONDS

    def sign(self, ticket: UploadTicket) -> str:
        """Return the signed ticket as text for a URL."""
        return signed_text.sign(ticket, self._keys()[0])

    def read(self, text: str) -> UploadTicket:
        """Verify a ticket and return it. Raises RestError."""
        ticket = signed_text.verify(text, self._keys(), UploadTicket)
        if ticket is None or self._now() >= ticket.expires:
            detail = "This upload does not exist or has expired. Push the environment again."
            raise RestError(404, Reason.OBJECT_NOT_FOUND, detail)
        return ticket

    @asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[UploadSlot]:
        """Hold a slot while the context is open. Raises RestError if no slot becomes free within WAIT_SECONDS, or too
        many uploads are waiting.
        """
        upload = UploadSlot(namespace, self._clock())
        of_namespace = sum(other.namespace == namespace for other in self._waiting)
        if len(self._waiting) >= MAX_WAITING or of_namespace >= MAX_WAITING_OF_NAMESPACE:
            raise _busy()
        self._waiting[upload] = None
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                # Slots become free when uploads end, and as time passes for slow uploads.
                while not self._begin(upload):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise _busy() from None
        finally:
            del self._waiting[upload]
        try:
            yield upload
        finally:
            self._close(upload)

    def _begin(self, upload: UploadSlot) -> bool:
        """Assign a slot to the upload if it is next. Returns whether the upload got a slot."""
        taken = {other.namespace for other in self._open}
        if upload is not next((other for other in self._waiting if other.namespace not in taken), None):
            return False
        now = self._clock()
        if len(self._open) >= MAX_UPLOADS:
            other = self._slowest(now) or self._longest(upload, now)
            if other is None:
                return False
            self._close(other)
            other.end()
        upload.begun = now
        self._open.add(upload)
        return True

    def _close(self, upload: UploadSlot) -> None:
        if upload in self._open:
            self._open.remove(upload)
            now = self._clock()
            self._ended.append((now, upload.namespace, now - upload.begun))

    def _slowest(self, now: float) -> UploadSlot | None:
        slow = [(rate, other) for other in self._open if (rate := other.slow_rate(now)) is not None]
        return min(slow, key=lambda found: found[0])[1] if slow else None

    def _longest(self, upload: UploadSlot, now: float) -> UploadSlot | None:
        """Return the long upload that loses its slot to `upload`, or None.

        It is the long upload whose namespace has used the slots most, if that namespace has used them more than the
        namespace of `upload`.
        """
        if now - upload.asked < PATIENCE_SECONDS:
            return None
        while self._ended and self._ended[0][0] < now - USE_SECONDS:
            self._ended.popleft()
        used: defaultdict[str, float] = defaultdict(float)
        for _, namespace, seconds in self._ended:
            used[namespace] += seconds
        for other in self._open:
            used[other.namespace] += now - other.begun
        long = [other for other in self._open if not other.is_complete and now - other.begun >= LONG_SECONDS]
        most = max(long, key=lambda other: used[other.namespace], default=None)
        return most if most is not None and used[most.namespace] > used[upload.namespace] else None


def _busy() -> RestError:
    detail = "rlrun-server has too many uploads at the moment. Retry the command later."
    return RestError(503, Reason.TOO_MANY_REQUESTS, detail)


def check_wheel(data: bytes, ticket: UploadTicket) -> None:
    """Check that the data is the announced wheel. Raises RestError."""
    if len(data) != ticket.size or hashlib.sha256(data).hexdigest() != ticket.sha256:
        raise invalid(
            f"The upload does not match the announced {ticket.file}: its size or SHA-256 differs.", status=422
        )
    try:
        with opened_wheel(data) as wheel:
            is_wheel = any(name.endswith(".dist-info/METADATA") for name in wheel.namelist())
    except WheelInvalid as error:
        raise invalid(f"{ticket.file} is not a readable wheel: {error}.", status=422) from error
    if not is_wheel:
        raise invalid(f"{ticket.file} is not a wheel: it has no METADATA.", status=422)
