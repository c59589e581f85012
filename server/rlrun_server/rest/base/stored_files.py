"""Reader of small files of runs in S3, with threads of its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

from rlrun.constants import Reason
from rlrun.storage.errors import StoreError
from rlrun.storage.layout import SHARED_FOLDERS, RunLayout, S3Uri
from rlrun.storage.store import StoredObject

from rlrun_server.rest.base.problems import RestError
from rlrun_server.signing.credentials import CredentialsMissing

log = logging.getLogger(__name__)

WAIT_SECONDS = 25.0
"""Time for which a request waits for S3."""

P = ParamSpec("P")
T = TypeVar("T")


class FileStore(Protocol):
    """The part of `Store` that is used. All methods raise StoreError."""

    def walk(self, uri: S3Uri) -> Iterable[StoredObject]:
        """Yield every object below the folder."""
        ...

    def get_range(self, uri: S3Uri, start: int | None, length: int) -> bytes:
        """Return up to `length` bytes of the object: from byte `start`, or the last ones (None)."""
        ...


class StoredFiles:
    """Files of all runs."""

    def __init__(
        self, store: FileStore, renew: Callable[[], Awaitable[None]], root: S3Uri, name: str, threads: int
    ) -> None:
        """`renew` refreshes the S3 credentials and raises CredentialsMissing. `name`: name of the threads."""
        self.store = store
        self._renew = renew
        self._root = root
        self._threads = ThreadPoolExecutor(threads, name)

    def layout(self, namespace: str, uid: str) -> RunLayout:
        """Return the places of a run's files. Raises RestError for a namespace that is a folder of the platform."""
        if namespace in SHARED_FOLDERS:
            raise RestError(404, Reason.OBJECT_NOT_FOUND, f"Namespace {namespace} has no files of runs.")
        return RunLayout.of(self._root.bucket, self._root.key, namespace, uid)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call that reads, made in a thread. Raises RestError if S3 does not answer."""
        try:
            await self._renew()
            work = asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **kwargs))
            return await asyncio.wait_for(work, WAIT_SECONDS)
        except (StoreError, CredentialsMissing, TimeoutError) as error:
            log.warning("files of a run cannot be read: %s", error)
            detail = "S3 does not answer rlrun-server. Repeat the request later."
            raise RestError(503, Reason.S3_UNREACHABLE, detail) from error

    def close(self) -> None:
        """End the threads, without waiting for S3."""
        self._threads.shutdown(wait=False, cancel_futures=True)
