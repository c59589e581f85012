"""S3 credentials, refreshed every few seconds without blocking on a cloud service that does not respond."""

import asyncio
import math
from collections.abc import Callable

from botocore.credentials import ReadOnlyCredentials

KEPT_SECONDS = 5.0
"""Seconds after which credentials are read again. The kubelet updates a changed Secret within about a minute."""
WAIT_SECONDS = 3.0
"""Maximum time in seconds that a request waits for the credentials to be read."""
OLD_SECONDS = 600.0
"""Seconds for which credentials stay in use while reads fail. S3 rejects expired temporary credentials."""


class CredentialsMissing(Exception):
    """Raised if there are no S3 credentials, or if they cannot be renewed now."""


class CredentialSource:
    """Cache of the credentials that `read` returns. `read` runs in a thread, one call at a time."""

    def __init__(self, read: Callable[[], ReadOnlyCredentials], clock: Callable[[], float]) -> None:
        """`read` may block. It raises CredentialsMissing."""
        self._read = read
        self._clock = clock
        self._held: ReadOnlyCredentials | None = None
        self._held_at = -math.inf
        self._read_at = -math.inf
        self._reading: asyncio.Task[ReadOnlyCredentials] | None = None
        self._reading_since = -math.inf
        self._failure: BaseException | None = None

    async def renew(self) -> None:
        """Read the credentials again unless they were read a few seconds ago. Raises CredentialsMissing."""
        if self._clock() >= self._read_at + KEPT_SECONDS:
            if self._reading is None:
                self._reading, self._reading_since = asyncio.create_task(asyncio.to_thread(self._read)), self._clock()
                self._reading.add_done_callback(self._keep)
            left = self._reading_since + WAIT_SECONDS - self._clock()
            # Requests that arrive during a slow read use the previous credentials.
            await asyncio.wait({self._reading}, timeout=max(0.0, left))
        self.current()

    def current(self) -> ReadOnlyCredentials:
        """Return the credentials. Raises CredentialsMissing."""
        if self._held is None or self._clock() >= self._held_at + OLD_SECONDS:
            if self._failure is not None:
                raise CredentialsMissing(str(self._failure)) from self._failure
            raise CredentialsMissing(f"rlrun-server has waited more than {WAIT_SECONDS:.0f} s for S3 credentials")
        return self._held

    def _keep(self, reading: "asyncio.Task[ReadOnlyCredentials]") -> None:
        self._reading, self._read_at = None, self._clock()
        self._failure = asyncio.CancelledError() if reading.cancelled() else reading.exception()
        if self._failure is None:
            self._held, self._held_at = reading.result(), self._read_at
