"""Storage of API keys: one Secret of the platform's namespace, with an entry per key.

The operator makes it. rlrun-server may read and change this one Secret and no other: a program that may create Secrets
in a namespace can obtain tokens of its ServiceAccounts, including the operator's.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import SECRET, SERVICE_ACCOUNT, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.protocol.api_keys import ACCOUNT

from rlrun_server.authentication.api_key import ApiKey, read_entries, to_entries

KEPT_SECONDS = 10.0
"""Maximum age of the table of keys. A key deleted through another replica keeps working this long."""
UNKNOWN_SECONDS = 1.0
"""Age of the table before it is read again for a key that it lacks: another replica may just have made it."""
TRIES = 5

Keys = Mapping[str, ApiKey]
"""Keys by id."""


class StoreMissing(Exception):
    """The Secret for API keys does not exist."""


class KeyCluster(Protocol):
    """The part of `AsyncKubeClient` that is used."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return the object, or None if it does not exist. Raises ApiError."""
        ...

    async def replace(self, obj: Obj) -> Obj:
        """Replace the object. Raises ApiError 409 if its resourceVersion is outdated."""
        ...


class ApiKeyStore:
    """Keys of all namespaces. Methods raise ApiError and StoreMissing."""

    def __init__(self, cluster: KeyCluster, namespace: str, name: str, clock: Callable[[], float]) -> None:
        """`namespace` and `name` are those of the Secret."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._table: tuple[float, Keys] | None = None
        self._reading: asyncio.Task[Keys] | None = None

    async def find(self, key_id: str) -> ApiKey | None:
        """Return the key with this id. Costs a request in KEPT_SECONDS, or UNKNOWN_SECONDS for unknown keys."""
        api_key = (await self._read_recent(KEPT_SECONDS)).get(key_id)
        return api_key or (await self._read_recent(UNKNOWN_SECONDS)).get(key_id)

    async def keys(self) -> Keys:
        """Return all keys as they are now, also those that have ended."""
        return read_entries(await self._secret())

    async def change(self, decide: Callable[[Keys], Keys]) -> None:
        """Store what `decide` makes of the keys. It is called again if another replica has changed them meanwhile.

        Raises what `decide` raises.
        """
        for tries in range(1, TRIES + 1):
            secret = await self._secret()
            wanted = decide(read_entries(secret))
            try:
                await self._cluster.replace({**secret, "data": to_entries(wanted)})
            except ApiError as error:
                if error.status != 409 or tries == TRIES:
                    raise
                continue
            self._table = (self._clock(), wanted)
            return

    async def account_uid(self, namespace: str) -> str | None:
        """Return the uid of the ServiceAccount whose rights the keys of a namespace have.

        None without one, and in a namespace that is not a tenant.
        """
        try:
            account = await self._cluster.get(SERVICE_ACCOUNT, namespace, ACCOUNT)
        except ApiError as error:
            if error.status == 403:
                return None
            raise
        return None if account is None else str(account["metadata"]["uid"])

    async def _read_recent(self, seconds: float) -> Keys:
        if self._table is not None and self._clock() < self._table[0] + seconds:
            return self._table[1]
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        # The read continues if one of several clients disconnects.
        return await asyncio.shield(self._reading)

    async def _read(self) -> Keys:
        try:
            began = self._clock()
            keys = await self.keys()
            # A change that ended meanwhile is newer.
            if self._table is None or began >= self._table[0]:
                self._table = (began, keys)
            return keys
        finally:
            self._reading = None

    async def _secret(self) -> Obj:
        obj = await self._cluster.get(SECRET, self._namespace, self._name)
        if obj is None:
            raise StoreMissing(
                f"Secret {self._namespace}/{self._name} for API keys does not exist: restart the operator, which makes "
                "it when it starts, and see its log"
            )
        return obj
