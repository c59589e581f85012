"""Limit of concurrent work, per user and in total."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rlrun.constants import Reason

from rlrun_server.authentication.users import User
from rlrun_server.rest.base.problems import RestError


class ConcurrencyLimit:
    """Number of present uses by user."""

    def __init__(self, what: str, per_user: int, total: int) -> None:
        """`what`: the things that are counted, in the plural."""
        self._what = what
        self._per_user = per_user
        self._total = total
        self._uses: Counter[str] = Counter()

    @property
    def uses(self) -> int:
        """Number of all uses."""
        return self._uses.total()

    def take(self, user: User) -> None:
        """Count one more use, until `release`. Raises RestError."""
        if self._uses[user.limited_as] >= self._per_user:
            detail = (
                f"User {user.limited_as} has {self._per_user} {self._what} open, and may have no more. End one of them."
            )
            raise RestError(429, Reason.TOO_MANY_REQUESTS, detail)
        if self._uses.total() >= self._total:
            detail = (
                f"rlrun-server has {self._total} {self._what} open, and no more at a time. Repeat the request later."
            )
            raise RestError(503, Reason.TOO_MANY_REQUESTS, detail)
        self._uses[user.limited_as] += 1

    def release(self, user: User) -> None:
        """Count one use less."""
        self._uses[user.limited_as] -= 1
        if self._uses[user.limited_as] <= 0:
            del self._uses[user.limited_as]

    @contextmanager
    def use(self, user: User) -> Iterator[None]:
        """Count one more use while the context is open. Raises RestError."""
        self.take(user)
        try:
            yield
        finally:
            self.release(user)
