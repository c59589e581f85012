"""Creates, lists and deletes API keys, for users who may create tokens for the keys' ServiceAccount."""

import logging
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from rlrun.constants import Reason
from rlrun.kube.errors import ApiError
from rlrun.protocol.api_keys import ACCOUNT, KEYS_AUDIENCE, ApiKeyInfo, ApiKeyList, CreatedApiKey, NewApiKey
from rlrun.service.errors import ProblemError

from rlrun_server.authentication.api_key import ApiKey, is_api_key, mint, size_of
from rlrun_server.authentication.api_key_store import ApiKeyStore, Keys, StoreMissing
from rlrun_server.authentication.identification import Identification, not_reviewed, too_many
from rlrun_server.authentication.users import Check, User, Users, account_name
from rlrun_server.runtime.rate_limit import Rate, RateLimiter

log = logging.getLogger(__name__)

NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_KEYS = 100
"""Maximum number of unexpired keys per namespace."""
MAX_KEYS_OF_ALL = 2000
"""Maximum number of unexpired keys in all namespaces. They fill a Secret if each has 500 bytes."""
MAX_SECRET_BYTES = 1024**2
"""Maximum total size of the entries of a Secret, in bytes. The API server refuses larger Secrets."""
REQUESTS = Rate(per_second=2.0, burst=40.0)
"""Rate limit per namespace for authorized requests, each of which reads the Secret with all keys."""
ID_LENGTH = 12


class ApiKeyManagement:
    """Handles requests to create, list and delete API keys. All rejections are ProblemErrors."""

    def __init__(
        self,
        identification: Identification,
        users: Users,
        store: ApiKeyStore | None,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        on_deleted: Callable[[str], None] | None = None,
    ) -> None:
        """`clock` returns monotonic seconds for rate limits, `now` the time in UTC. If `store` is None, API keys are
        disabled. `on_deleted` is called with the id of each deleted key.
        """
        self._identification = identification
        self._users = users
        self._store = store
        self._clock = clock
        self._now = now
        self._on_deleted = on_deleted
        self._requests = RateLimiter(REQUESTS)

    async def create(
        self, token: str, client: str, namespace: str, read: Callable[[], Awaitable[NewApiKey]]
    ) -> CreatedApiKey:
        """Create a key for the namespace, and delete the expired keys of all namespaces.

        `read` returns the request's body, and is called only after the user is authorized. Raises ProblemError, and
        exceptions from `read`.
        """
        store, user = await self._authorize(token, client, namespace)
        asked = await read()
        with _problems():
            account_uid = await store.account_uid(namespace)
            if account_uid is None:
                raise _account_missing(namespace)
            now = self._now()
            lifetime = timedelta(days=asked.days)
            key, text = mint(namespace, account_uid, user, asked.description, lifetime, now)
            await store.change(lambda keys: _with(keys, key, now))
        log.info("%s created API key %s for namespace %s, which expires at %s", user, key.id, namespace, key.expires)
        return CreatedApiKey(**dict(key.info), key=text)

    async def list(self, token: str, client: str, namespace: str) -> ApiKeyList:
        """Return the keys of the namespace, including expired ones, oldest first. Raises ProblemError."""
        store, _ = await self._authorize(token, client, namespace)
        with _problems():
            keys = [key for key in (await store.keys()).values() if key.namespace == namespace]
        return ApiKeyList(keys=[key.info for key in sorted(keys, key=lambda key: (key.created, key.id))])

    async def delete(self, token: str, client: str, namespace: str, key_id: str) -> ApiKeyInfo:
        """Delete a key of the namespace, and return its description. It becomes invalid within seconds. Raises
        ProblemError.
        """
        store, user = await self._authorize(token, client, namespace)
        deleted: dict[str, ApiKey] = {}

        def without(keys: Keys) -> Keys:
            key = keys.get(key_id)
            if key is None or key.namespace != namespace:
                message = f"Namespace {namespace} has no API key {key_id[:ID_LENGTH]!r}. List the ids: rlrun key list."
                raise ProblemError.of(404, Reason.API_KEY_NOT_FOUND, message)
            deleted[key_id] = key
            return {other: kept for other, kept in keys.items() if other != key_id}

        with _problems():
            await store.change(without)
        if self._on_deleted is not None:
            self._on_deleted(key_id)
        log.info("%s deleted API key %s in namespace %s", user, key_id, namespace)
        return deleted[key_id].info

    async def _authorize(self, token: str, client: str, namespace: str) -> tuple[ApiKeyStore, str]:
        """Check that the user may manage the keys of the namespace. Returns the store and the user's name."""
        if self._store is None:
            message = "API keys are disabled (users.apiKeys=false in the chart). Ask the platform team."
            raise ProblemError.of(403, Reason.STORAGE_ACCESS_DENIED, message)
        if is_api_key(token):
            # Otherwise a leaked key could create other keys that stay valid after its own expiry or deletion.
            message = "An API key cannot manage API keys. Send a Kubernetes token instead."
            raise ProblemError.of(403, Reason.STORAGE_ACCESS_DENIED, message)
        if not NAMESPACE.fullmatch(namespace):
            message = f"{namespace[:64]!r} in the path is not a valid namespace name."
            raise ProblemError.of(422, Reason.INVALID_REQUEST, message)
        user = await self._manager(token, client, namespace)
        if not self._requests.allow(namespace, self._clock()):
            raise too_many(f"Namespace {namespace}")
        return self._store, user

    async def _manager(self, token: str, client: str, namespace: str) -> str:
        try:
            user = await self._identification.identify(token, client)
        except ProblemError as error:
            if error.status == 401 and await self._identification.is_key_manager(token, client, namespace):
                return account_name(namespace)
            raise
        if user.name == account_name(namespace):
            message = (
                f"A token of ServiceAccount {ACCOUNT} can manage API keys only if it has the audience {KEYS_AUDIENCE}. "
                f"Use `rlrun key`, which creates such a token."
            )
            raise ProblemError.of(403, Reason.STORAGE_ACCESS_DENIED, message)
        await self._check(user, namespace)
        return user.name

    async def _check(self, user: User, namespace: str) -> None:
        check = Check("create", "serviceaccounts", namespace, "token", group="", name=ACCOUNT)
        with _problems():
            is_allowed = await self._users.may(user, check)
        if not is_allowed:
            # Use the same response for a namespace that does not exist.
            message = (
                f"User {user.name} may not create tokens for ServiceAccount {ACCOUNT} in namespace {namespace}. Ask an "
                f"administrator for `create serviceaccounts/token` on it."
            )
            raise ProblemError.of(403, Reason.STORAGE_ACCESS_DENIED, message)


def _with(keys: Keys, new: ApiKey, now: datetime) -> Keys:
    living = {key_id: key for key_id, key in keys.items() if key.expires > now}
    of_namespace = sum(key.namespace == new.namespace for key in living.values())
    if of_namespace >= MAX_KEYS or len(living) >= MAX_KEYS_OF_ALL:
        message = (
            f"No more API keys can be created: namespace {new.namespace} has {of_namespace} (limit {MAX_KEYS}), all "
            f"namespaces have {len(living)} (limit {MAX_KEYS_OF_ALL}). Delete unused keys."
        )
        raise ProblemError.of(409, Reason.API_KEY_LIMIT_REACHED, message)
    kept = {**living, new.id: new}
    size = size_of(kept)
    if size > MAX_SECRET_BYTES:
        message = (
            f"No more API keys can be created: with this one, the keys of all namespaces would have {size} bytes, and "
            f"the Secret that stores them holds {MAX_SECRET_BYTES}. Shorten `description`, or delete unused keys."
        )
        raise ProblemError.of(409, Reason.API_KEY_LIMIT_REACHED, message)
    return kept


@contextmanager
def _problems() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise not_reviewed(error) from error
    except StoreMissing as error:
        raise ProblemError.of(503, Reason.STORAGE_SERVER_UNAVAILABLE, f"{error}.") from error


def _account_missing(namespace: str) -> ProblemError:
    message = (
        f"ServiceAccount {ACCOUNT} does not exist in namespace {namespace}, or rlrun-server has no permissions there "
        f"(see `rlrun doctor`). API keys have the permissions of this ServiceAccount. Ask an administrator to create "
        f"it: kubectl create serviceaccount {ACCOUNT} -n {namespace}, and kubectl create rolebinding {ACCOUNT} "
        f"--clusterrole=edit --serviceaccount={namespace}:{ACCOUNT} -n {namespace}"
    )
    return ProblemError.of(409, Reason.API_KEY_ACCOUNT_MISSING, message)
