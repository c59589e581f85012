"""Namespaces whose runs a user may list."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass

from rlrun_server.authentication.users import Check, User
from rlrun_server.rest.base.access import VISIBLE, Access
from rlrun_server.runtime.caches import ReviewCache

KEPT_SECONDS = 15.0
"""Seconds for which the namespaces of a user are cached. Permissions are cached for the same time, so a
change takes effect within twice this time.
"""
MAX_NAMESPACES = 200
"""Maximum number of namespaces that are checked for a user who may not list runs in all namespaces."""


@dataclass(frozen=True)
class Visible:
    """Namespaces that are visible to a user."""

    names: frozenset[str]
    is_complete: bool
    """False if there are more namespaces than were checked."""
    has_all: bool = False
    """True for a user who may list runs in all namespaces, including those without runs."""


class VisibleNamespaces:
    """Finds the namespaces that are visible to a user, by asking the API server about each namespace with objects."""

    def __init__(self, access: Access, namespaces: Callable[[], Collection[str]], clock: Callable[[], float]) -> None:
        self._access = access
        self._namespaces = namespaces
        self._known: ReviewCache[Visible] = ReviewCache(lambda _: True, KEPT_SECONDS, clock)

    async def of(self, user: User) -> Visible:
        """Return the namespaces that are visible to the user. Raises RestError, ProblemError."""
        key = hashlib.sha256(json.dumps(asdict(user)).encode()).digest()
        return await self._known.get(key, lambda: self._ask(user))

    async def _ask(self, user: User) -> Visible:
        candidates = sorted({*self._namespaces(), *filter(None, [user.namespace])})
        verb, resource = VISIBLE
        if await self._access.may(user, Check(verb, resource, "")):
            return Visible(frozenset(candidates), True, has_all=True)
        asked = candidates[:MAX_NAMESPACES]
        if user.namespace and user.namespace not in asked:
            asked[-1] = user.namespace
        answers = await self._access.may_each(user, [Check(verb, resource, name) for name in asked])
        names = frozenset(name for name, allowed in zip(asked, answers, strict=True) if allowed)
        return Visible(names, len(asked) == len(candidates))
