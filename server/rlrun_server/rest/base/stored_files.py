"""Access to the platform's files in S3 through fair thread pools, and errors for requests that fail because of S3."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from rlrun.constants import Reason
from rlrun.storage.errors import Repeat, StoreError
from rlrun.storage.layout import SHARED_FOLDERS, RunLayout, S3Uri
from rlrun.storage.store import Store

from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.base.tenant_queue import TenantQueue
from rlrun_server.signing.credentials import CredentialsMissing

FAILED_DEPENDENCY = 424
"""Status of failures for which a retry does not help. 403 would mean that the caller may not read the files."""
CAUSES: dict[str, str] = {
    Reason.S3_ACCESS_DENIED: "the credentials of rlrun-server are wrong or lack a permission",
    Reason.S3_BUCKET_MISSING: "the bucket of the platform does not exist",
    Reason.S3_NOT_FOUND: "a file no longer exists",
    Reason.S3_ARTIFACT_CORRUPT: "a file is damaged or too large",
    Reason.S3_NOT_IMPLEMENTED: "the S3 server lacks an operation that the platform needs",
    Reason.S3_CREDENTIALS_MISSING: "rlrun-server has no credentials for S3",
    Reason.S3_UNREACHABLE: "S3 does not respond to rlrun-server",
    Reason.S3_FULL: "S3 accepts no more data",
}
"""Cause of an S3 failure, by reason. The error itself contains bucket, keys and settings of the platform and is only
logged.
"""


_LOG = "the platform team: S3's response is in the log of rlrun-server."
ADVICE = {
    Repeat.later: "Retry the request later.",
    Repeat.grace: f"Retry the request later. If this persists, ask {_LOG}",
    Repeat.never: f"Retrying does not help. Ask {_LOG}",
}


def store_failure(error: Exception) -> RestError:
    """Return the error for a StoreError, missing credentials or a timeout of S3."""
    reason, repeat = Reason.S3_UNREACHABLE.value, Repeat.later
    if isinstance(error, CredentialsMissing):
        reason, repeat = Reason.S3_CREDENTIALS_MISSING.value, Repeat.grace
    elif isinstance(error, StoreError):
        reason, repeat = error.reason, error.repeat
    cause = CAUSES.get(reason, "S3 rejected a request of rlrun-server")
    status = FAILED_DEPENDENCY if repeat is Repeat.never else 503
    return RestError(status, reason, f"{cause[0].upper()}{cause[1:]}. {ADVICE[repeat]}")


log = logging.getLogger(__name__)

WAIT_SECONDS = 25.0
"""Maximum time in seconds for which a request waits for S3."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class PlatformStorage:
    """The platform's files in S3."""

    store: Store
    renew: Callable[[], Awaitable[None]]
    """Refreshes the S3 credentials. Raises CredentialsMissing."""
    root: S3Uri
    """Folder of the platform in the bucket."""


async def wait_for_files(what: str, work: Awaitable[T]) -> T:
    """Return the result of `work`, which uses files in S3. Raises RestError if S3 fails or `work` takes longer than
    WAIT_SECONDS. `what` names the files in the log.
    """
    try:
        return await asyncio.wait_for(work, WAIT_SECONDS)
    except (StoreError, CredentialsMissing, TimeoutError) as error:
        log.warning("%s in S3 cannot be used: %r", what, error)
        raise store_failure(error) from error


class StoredFiles:
    """Access to files in S3 through one thread pool."""

    def __init__(
        self, storage: PlatformStorage, name: str, threads: int, *, waiting: int | None = None, at_once: int = 1
    ) -> None:
        """`name`, `threads`, `waiting` and `at_once` are passed to `TenantQueue`."""
        self.store = storage.store
        self.root = storage.root
        self._renew = storage.renew
        self._threads = TenantQueue(threads, name, waiting, at_once)

    def layout(self, namespace: str, uid: str) -> RunLayout:
        """Return the layout of a run's files. Raises RestError for a namespace whose folder belongs to the platform."""
        if namespace in SHARED_FOLDERS:
            raise RestError(
                404,
                Reason.OBJECT_NOT_FOUND,
                f"Namespace {namespace} cannot have runs, because its name is reserved for the platform.",
            )
        return RunLayout.of(self.root.bucket, self.root.key, namespace, uid)

    async def run(self, tenant: str, what: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that uses files in S3 in a thread, and return the result. `what` names the files in the log.

        Raises RestError if S3 fails, or if too many calls of the tenant (a namespace or a user) are waiting.
        """

        async def work() -> T:
            await self._renew()
            return await self._threads.run(tenant, call, *args, **kwargs)

        return await wait_for_files(what, work())

    def close(self) -> None:
        """Stop the threads without waiting for S3."""
        self._threads.close()
