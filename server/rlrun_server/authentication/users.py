"""Identifies users by their tokens, and checks the permissions that the API server grants them."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rlrun.constants import GROUP
from rlrun.kube.objects import Obj
from rlrun.protocol.api_keys import ACCOUNT, KEYS_AUDIENCE

from rlrun_server.authentication.api_key import is_api_key, parse
from rlrun_server.authentication.api_key_store import ApiKeyStore
from rlrun_server.authentication.sealed import Sealer
from rlrun_server.authentication.token_reviews import (
    ACCEPTED_SECONDS,
    USER_PREFIX,
    CreateReview,
    token_key,
    token_review,
)
from rlrun_server.runtime.caches import ReviewCache

ALLOWED_SECONDS = 15.0
"""Seconds for which a permission, and the UID of the ServiceAccount for API keys, is cached. A revoked permission, and
the keys of a deleted ServiceAccount, stay valid for up to this time.
"""
ISSUER_USER, ISSUER_USER_PREFIX = "issuer user", "rlo_"
"""Purpose and prefix of the sealed credentials for users from an OIDC issuer."""
AUTHENTICATED = "system:authenticated"


@dataclass(frozen=True)
class User:
    """Identity of a user as the API server sees it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    api_key: str = ""
    """Id of the API key with which the user authenticated. Empty for other credentials."""
    namespace: str = ""
    """Namespace of the API key. Empty for other credentials."""

    @property
    def limited_as(self) -> str:
        """Name for rate limits. All ServiceAccounts of a namespace share one name, because users of the namespace can
        create any number of ServiceAccounts.
        """
        is_account = self.name.startswith(USER_PREFIX)
        return self.name.rpartition(":")[0] if is_account else self.name


@dataclass(frozen=True)
class Check:
    """Permission that a SubjectAccessReview checks."""

    verb: str
    resource: str
    namespace: str
    subresource: str = ""
    group: str = GROUP
    name: str = ""
    """Name of an object. Empty means all objects in the namespace."""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource} in {f'namespace {self.namespace}' if self.namespace else 'all namespaces'}"


class Users:
    """Verifies the tokens, API keys and permissions of users, and caches the results."""

    def __init__(
        self,
        create: CreateReview,
        clock: Callable[[], float],
        api_keys: ApiKeyStore | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        issuer_sealer: Sealer | None = None,
    ) -> None:
        """`clock` returns monotonic seconds for the caches, `now` the time in UTC. If `api_keys` is None, API keys are
        rejected; if `issuer_sealer` is None, credentials from an OIDC login are.
        """
        self._create = create
        self._api_keys = api_keys
        self._now = now
        self._issuer_sealer = issuer_sealer
        self._tokens: ReviewCache[User | None] = ReviewCache(lambda user: user is not None, ACCEPTED_SECONDS, clock)
        self._accounts: ReviewCache[str | None] = ReviewCache(lambda uid: uid is not None, ALLOWED_SECONDS, clock)
        self._permissions: ReviewCache[bool] = ReviewCache(lambda allowed: allowed, ALLOWED_SECONDS, clock)

    def knows(self, token: str) -> bool:
        """Return whether the token was accepted before, its review is cached or in progress, or it looks like an API
        key or a sealed credential, which need no TokenReview.
        """
        key = token_key(token)
        return is_checked_here(token) or self._tokens.has_accepted(key) or self._tokens.knows(key)

    def has_accepted(self, token: str) -> bool:
        """Return whether the API server accepted the token at its last review, even if the result has expired."""
        return self._tokens.has_accepted(token_key(token))

    async def identify(self, token: str) -> User | None:
        """Return the user of a token or API key, or None if it is rejected. Raises ApiError, StoreMissing."""
        if is_api_key(token):
            return await self._user_of_key(token)
        if is_issuer_user(token):
            return self._user_of_issuer(token)

        async def ask() -> User | None:
            return read_user(await self._create(token_review(token, [])))

        return await self._tokens.get(token_key(token), ask)

    async def is_key_manager(self, token: str, namespace: str) -> bool:
        """Return whether the token belongs to the ServiceAccount whose permissions the namespace's API keys have, and
        has the audience for managing keys. Raises ApiError.

        Users who may create tokens for this ServiceAccount can create one with that audience. A token with the API
        server's audience is not sufficient, because other servers may have received it.
        """

        async def ask() -> User | None:
            answer = await self._create(token_review(token, [KEYS_AUDIENCE]))
            accepted = KEYS_AUDIENCE in ((answer.get("status") or {}).get("audiences") or [])
            return read_user(answer) if accepted else None

        user = await self._tokens.get(token_key(token, KEYS_AUDIENCE), ask)
        return user is not None and user.name == account_name(namespace)

    async def _user_of_key(self, text: str) -> User | None:
        parts = parse(text)
        if parts is None or self._api_keys is None:
            return None
        key = await self._api_keys.find(parts[0])
        if key is None or not key.opens_with(parts[1], self._now()):
            return None
        store, namespace = self._api_keys, key.namespace
        # Like a token, the key becomes invalid when its account is deleted.
        uid = await self._accounts.get(namespace.encode(), lambda: store.account_uid(namespace))
        return account_user(namespace, key.account_uid, key.id) if uid == key.account_uid else None

    def _user_of_issuer(self, token: str) -> User | None:
        if self._issuer_sealer is None:
            return None
        content = self._issuer_sealer.open(token.removeprefix(ISSUER_USER_PREFIX), ISSUER_USER)
        fields: dict[str, Any] = {"expires": 0} if content is None else json.loads(content)
        if fields["expires"] <= self._now().timestamp():
            return None
        return User(fields["name"], groups=(AUTHENTICATED, *fields["groups"]))

    def knows_permission(self, user: User, check: Check) -> bool:
        """Return whether `may` needs no new request, because the result is cached or a request is in progress."""
        return self._permissions.knows(_permission_key(user, check))

    async def may(self, user: User, check: Check) -> bool:
        """Return whether the user has the permission. Raises ApiError."""

        async def ask() -> bool:
            return is_permitted(await self._create(access_review(user, check)))

        return await self._permissions.get(_permission_key(user, check), ask)


def seal_issuer_user(sealer: Sealer, name: str, groups: Sequence[str], expires: int) -> str:
    """Return the sealed credential of a user from an OIDC issuer. `expires` is in seconds since 1970."""
    fields = {"name": name, "groups": sorted(groups), "expires": expires}
    return ISSUER_USER_PREFIX + sealer.seal(json.dumps(fields).encode(), ISSUER_USER)


def is_issuer_user(token: str) -> bool:
    """Return whether the token has the prefix of credentials from `seal_issuer_user`."""
    return token.startswith(ISSUER_USER_PREFIX)


def is_checked_here(token: str) -> bool:
    """Return whether the token looks like an API key or a sealed credential, which rlrun-server verifies itself. Valid
    ones cannot be guessed.
    """
    return is_api_key(token) or is_issuer_user(token)


def read_user(answer: Obj) -> User | None:
    """Return the user in a TokenReview, or None if the token was refused."""
    status = answer.get("status") or {}
    user = status.get("user") or {}
    if status.get("authenticated") is not True or not user.get("username"):
        return None
    extra = {str(key): tuple(map(str, values or [])) for key, values in (user.get("extra") or {}).items()}
    groups = tuple(sorted(map(str, user.get("groups") or [])))
    return User(str(user["username"]), str(user.get("uid") or ""), groups, tuple(sorted(extra.items())))


def account_name(namespace: str) -> str:
    """Return the Kubernetes user name of the ServiceAccount that gives a namespace's API keys their permissions."""
    return f"{USER_PREFIX}{namespace}:{ACCOUNT}"


def account_user(namespace: str, uid: str, key_id: str) -> User:
    """Return the user for an API key: its ServiceAccount, with the groups that the API server assigns."""
    accounts = "system:serviceaccounts"
    groups = (AUTHENTICATED, accounts, f"{accounts}:{namespace}")
    return User(account_name(namespace), uid, groups, api_key=key_id, namespace=namespace)


def access_review(user: User, check: Check) -> Obj:
    """Return the SubjectAccessReview to create."""
    attributes = {
        "group": check.group,
        "resource": check.resource,
        "subresource": check.subresource,
        "verb": check.verb,
        "namespace": check.namespace,
        **({"name": check.name} if check.name else {}),
    }
    spec = {
        "user": user.name,
        "uid": user.uid,
        "groups": list(user.groups),
        "extra": {key: list(values) for key, values in user.extra},
        "resourceAttributes": attributes,
    }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec}


def is_permitted(answer: Obj) -> bool:
    """Return the result of a SubjectAccessReview."""
    status = answer.get("status") or {}
    return status.get("allowed") is True and not status.get("denied")


def _permission_key(user: User, check: Check) -> bytes:
    return hashlib.sha256(json.dumps(access_review(user, check)["spec"]).encode()).digest()
