"""DNS lookups, with a quota for each run and namespace.

The C library looks names up in threads, and a deliberately slow name server occupies a thread until the library's
timeout. A lookup counts toward the quota until its thread ends, even if no connection waits for it any longer.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from rlrun.protocol.egress import EgressGrant
from rlrun.service.tenant_quota import QuotaResult, TenantQuota

LOOKUPS = 64
"""Maximum number of concurrent lookups, each in a thread."""
LOOKUPS_PER_NAMESPACE = 8
LOOKUPS_PER_RUN = 4

Resolve = Callable[[str, int], Awaitable[list[str]]]


class ThreadResolver:
    """Resolver that uses the C library in dedicated threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, "lookup")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host. Raises OSError, and UnicodeError for an invalid name."""

        def look_up() -> list[str]:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]) for entry in infos))

        return await asyncio.get_running_loop().run_in_executor(self._threads, look_up)


class NameLookups:
    """DNS lookups in progress, with a quota for each run and namespace."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._of_runs = TenantQuota(LOOKUPS_PER_RUN, LOOKUPS)
        self._of_namespaces = TenantQuota(LOOKUPS_PER_NAMESPACE, LOOKUPS)
        self._open: dict[tuple[str, str, int], asyncio.Task[list[str]]] = {}

    async def find(self, grant: EgressGrant, host: str, port: int, seconds: float) -> list[str]:
        """Return the addresses of a host. Waits while the run, its namespace or the proxy has used up its quota.

        Connections of a run to the same host share one lookup. Raises OSError, UnicodeError for an invalid name, and
        TimeoutError after `seconds`.
        """
        key = (grant.uid, host, port)
        async with asyncio.timeout(seconds):
            while (lookup := self._open.get(key) or self._begin(grant, key)) is None:
                await asyncio.wait(self._open.values(), return_when=asyncio.FIRST_COMPLETED)
                # The callbacks of a finished lookup release its slot.
                await asyncio.sleep(0)
            return list(await asyncio.shield(lookup))

    def _begin(self, grant: EgressGrant, key: tuple[str, str, int]) -> "asyncio.Task[list[str]] | None":
        """Start a lookup. Returns None if the run, its namespace or the proxy has used up its quota."""
        if self._of_namespaces.take(grant.namespace) is not QuotaResult.granted:
            return None
        if self._of_runs.take(grant.uid) is not QuotaResult.granted:
            self._of_namespaces.release(grant.namespace)
            return None

        def end(task: "asyncio.Task[list[str]]") -> None:
            del self._open[key]
            self._of_runs.release(grant.uid)
            self._of_namespaces.release(grant.namespace)
            # Do not report an error that no caller waits for.
            _ = task.cancelled() or task.exception()

        lookup = asyncio.ensure_future(self._look_up(*key[1:]))
        lookup.add_done_callback(end)
        self._open[key] = lookup
        return lookup

    async def _look_up(self, host: str, port: int) -> list[str]:
        return await self._resolve(host, port)
