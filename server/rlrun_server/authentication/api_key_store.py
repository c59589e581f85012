"""Stores API keys in one Secret in the platform's namespace, which the operator creates, with one entry per key.

rlrun-server may read and change only this Secret, because a program that may create Secrets in a namespace can obtain
tokens of the namespace's ServiceAccounts, including the operator's.
"""

from collections.abc import Callable, Mapping

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import SECRET, SERVICE_ACCOUNT
from rlrun.kube.objects import Obj
from rlrun.protocol.api_keys import ACCOUNT

from rlrun_server.authentication.api_key import ApiKey, read_entries, to_entries
from rlrun_server.runtime.caches import FetchedValue

KEPT_SECONDS = 10.0
"""Maximum age of the cached keys in seconds. A key deleted through another replica stays valid for up to this time."""
UNKNOWN_SECONDS = 1.0
"""Maximum age of the cached keys in seconds for an unknown key, which another replica may just have created."""
TRIES = 5

Keys = Mapping[str, ApiKey]
"""Keys by id."""


class StoreMissing(Exception):
    """Raised if the Secret for API keys does not exist. The message says what to do."""


class ApiKeyStore:
    """Store for the API keys of all namespaces, in one Secret. Methods raise ApiError and StoreMissing."""

    def __init__(self, cluster: AsyncKubeClient, namespace: str, name: str, clock: Callable[[], float]) -> None:
        """`namespace` and `name` identify the Secret."""
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._kept = FetchedValue(self.keys, clock)

    async def find(self, key_id: str) -> ApiKey | None:
        """Return the key with this id, or None. Sends at most one request per KEPT_SECONDS, or per UNKNOWN_SECONDS for
        unknown keys.
        """
        api_key = (await self._kept.value(KEPT_SECONDS)).get(key_id)
        return api_key or (await self._kept.value(UNKNOWN_SECONDS)).get(key_id)

    async def keys(self) -> Keys:
        """Return all keys, including expired ones, as the API server stores them now."""
        return read_entries(await self._secret())

    async def change(self, decide: Callable[[Keys], Keys]) -> None:
        """Replace the stored keys with the result of `decide`. If another replica changes the keys at the same time,
        reads them and calls `decide` again, up to TRIES times in all. Propagates exceptions from `decide`.
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
            self._kept.put(wanted)
            return

    async def account_uid(self, namespace: str) -> str | None:
        """Return the UID of the ServiceAccount that gives a namespace's API keys their permissions. Returns None if it
        does not exist, or if rlrun-server may not read it, as in a namespace that is not a tenant.
        """
        try:
            account = await self._cluster.get(SERVICE_ACCOUNT, namespace, ACCOUNT)
        except ApiError as error:
            if error.status == 403:
                return None
            raise
        return None if account is None else str(account["metadata"]["uid"])

    async def _secret(self) -> Obj:
        obj = await self._cluster.get(SECRET, self._namespace, self._name)
        if obj is None:
            raise StoreMissing(
                f"Secret {self._namespace}/{self._name} for API keys does not exist. The operator creates it at "
                f"startup: restart the operator and check the operator's log"
            )
        return obj
