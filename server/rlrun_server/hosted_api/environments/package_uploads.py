"""Uploads of packages: a ticket in the URL says who may upload which file, because clients send no key with it.

The ticket is signed with the keys that all replicas share. The server checks the file before it writes it to S3: size,
SHA-256, and that it is a wheel. So nothing that was not announced is ever stored.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from pydantic import ConfigDict, Field
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.protocol import signed_text

from rlrun_server.hosted_api.environments.wheel_archive import WheelInvalid, opened_wheel
from rlrun_server.rest.base.problems import RestError, invalid, not_found

TICKET_SECONDS = 900.0
UPLOAD_SECONDS = 120.0
MAX_UPLOADS = 3
"""Uploads at the same time: each may need twice the bytes of a wheel."""
MAX_UPLOADS_OF_NAMESPACE = 1
MAX_SOURCE = 64 * 1024**2
"""Bytes of a source archive, which is read and not kept."""


class Ticket(Schema):
    """Right to upload one file."""

    model_config = ConfigDict(extra="forbid")

    purpose: Literal["package-upload"] = "package-upload"
    """Tells tickets from other texts that are signed with the same keys."""
    kind: Literal["wheel", "source"]
    namespace: str
    owner: str
    name: str
    version: str
    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)
    """Bytes; 0 for a source archive, whose size is not announced."""
    expires: float
    """Seconds since 1970."""


class PackageUploads:
    """Signs and reads tickets, and bounds uploads at the same time."""

    def __init__(self, keys: Callable[[], Sequence[bytes]], now: Callable[[], float]) -> None:
        """`keys` are those that all replicas share. `now`: seconds since 1970."""
        self._keys = keys
        self._now = now
        self._open: dict[str, int] = {}

    @property
    def expires(self) -> float:
        """Time at which a ticket of now ends."""
        return self._now() + TICKET_SECONDS

    def sign(self, ticket: Ticket) -> str:
        """Return the ticket as text for a URL."""
        return signed_text.sign(ticket, self._keys()[0])

    def read(self, text: str) -> Ticket:
        """Return the ticket. Raises RestError."""
        ticket = signed_text.verify(text, self._keys(), Ticket)
        if ticket is None or self._now() >= ticket.expires:
            raise not_found("This upload, or no longer: it")
        return ticket

    @asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[None]:
        """Hold the place of one upload. Raises RestError if there are too many."""
        if sum(self._open.values()) >= MAX_UPLOADS or self._open.get(namespace, 0) >= MAX_UPLOADS_OF_NAMESPACE:
            detail = "rlrun-server has too many uploads at the moment. Repeat the command later."
            raise RestError(503, Reason.TOO_MANY_REQUESTS, detail)
        self._open[namespace] = self._open.get(namespace, 0) + 1
        try:
            yield
        finally:
            self._open[namespace] -= 1
            if not self._open[namespace]:
                del self._open[namespace]


def check_wheel(data: bytes, ticket: Ticket) -> None:
    """Return if the data is the announced wheel. Raises RestError."""
    if len(data) != ticket.size or hashlib.sha256(data).hexdigest() != ticket.sha256:
        raise invalid(f"The upload is not {ticket.file} as it was announced: size or SHA-256 differ.", status=422)
    try:
        with opened_wheel(data) as wheel:
            is_wheel = any(name.endswith(".dist-info/METADATA") for name in wheel.namelist())
    except WheelInvalid as error:
        raise invalid(f"{ticket.file} is not a wheel that can be read: {error}.", status=422) from error
    if not is_wheel:
        raise invalid(f"{ticket.file} is not a wheel: it has no METADATA.", status=422)
