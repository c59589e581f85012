"""Binds each namespace that owns environment packages to its uid.

The first push under an owner stores the uid next to the packages. A namespace that is recreated under the same name has
a different uid, and may neither push nor delete these packages.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import NAMESPACE
from rlrun.storage.errors import AlreadyExists, NotFound, Unreachable
from rlrun.storage.layout import S3Uri, package_owner_record
from rlrun.storage.store import Store

from rlrun_server.runtime.caches import ReviewCache
from rlrun_server.signing.s3_request import RequestNotAllowed
from rlrun_server.signing.user_permissions import Owners

KEPT_SECONDS = 15.0
"""Seconds for which a record is cached. A record that was deleted to transfer packages still applies for this time."""
NAMESPACE_SECONDS = 3.0
"""Seconds for which a namespace's uid is cached, for example for the files of one push. A namespace that is recreated
within this time still counts as the earlier one.
"""
WAIT_SECONDS = 20.0
THREADS = 4
UID_BYTES = 64


class PackageOwners:
    """Owners of environment packages, as recorded in S3."""

    def __init__(
        self,
        cluster: AsyncKubeClient,
        store: Store,
        renew: Callable[[], Awaitable[None]],
        root: S3Uri,
        owners: Owners,
        clock: Callable[[], float],
    ) -> None:
        """`renew` refreshes the S3 credentials. `owners` are the owners listed in the chart, which need no record."""
        self._cluster = cluster
        self._store = store
        self._renew = renew
        self._root = root
        self._owners = owners
        self._records: ReviewCache[str] = ReviewCache(lambda _: True, KEPT_SECONDS, clock)
        self._uids: ReviewCache[str] = ReviewCache(lambda _: True, NAMESPACE_SECONDS, clock)
        self._threads = ThreadPoolExecutor(THREADS, "owners")

    def close(self) -> None:
        """Stop the threads without waiting for S3."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def require(self, owner: str) -> None:
        """Check that the packages of `owner` belong to the namespace that currently has this name. If S3 has no record
        of their owner, records this namespace as the owner. The uid of a namespace that does not exist is empty.

        Raises RequestNotAllowed, or ApiError, StoreError or CredentialsMissing if the owner cannot be determined.
        """
        if owner in self._owners:
            return
        uid = await self._uids.get(owner.encode(), lambda: self._uid(owner))
        if uid != await self._records.get(owner.encode(), lambda: self._record(owner, uid)):
            raise RequestNotAllowed(
                f"the packages of {owner} belong to a deleted namespace with this name; the platform team can transfer "
                f"them to this namespace by deleting {package_owner_record(self._root, owner)}"
            )

    async def _uid(self, owner: str) -> str:
        try:
            namespace = await self._cluster.get(NAMESPACE, None, owner)
        except ApiError as error:
            if error.status != 403:
                raise
            raise RequestNotAllowed(
                f"namespace {owner} owns these packages, but rlrun-server may not read the namespace, because the "
                "chart's `operator.watchNamespaces` does not list it"
            ) from error
        return "" if namespace is None else str(namespace["metadata"]["uid"])

    async def _record(self, owner: str, uid: str) -> str:
        await self._renew()
        try:
            work = asyncio.get_running_loop().run_in_executor(self._threads, self._read_or_write, owner, uid)
            return await asyncio.wait_for(work, WAIT_SECONDS)
        except TimeoutError as error:
            raise Unreachable(f"S3 has not responded for {WAIT_SECONDS:.0f} s") from error

    def _read_or_write(self, owner: str, uid: str) -> str:
        """Return the owner's recorded uid. If there is no record, records `uid` first. Called in a thread."""
        record = package_owner_record(self._root, owner)
        try:
            return self._store.get_range(record, 0, UID_BYTES).decode()
        except NotFound:
            pass
        try:
            self._store.put_bytes(record, uid.encode(), replace=False)
            return uid
        except AlreadyExists:
            # Another replica was faster.
            return self._store.get_range(record, 0, UID_BYTES).decode()
