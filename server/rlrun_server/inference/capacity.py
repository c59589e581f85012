"""Limits on concurrent requests for completions, each of which may take minutes."""

from collections.abc import Iterator
from contextlib import contextmanager

from rlrun.service.tenant_quota import QuotaResult, TenantQuota

from rlrun_server.http.connection_limits import MAX_COMPLETIONS
from rlrun_server.inference.errors import InferenceError

PER_USER = 32
MAX_HELD = 64 * 1024 * 1024
"""Maximum memory in bytes for the bodies of all requests, and for responses that are not streamed, in total."""


class Capacity:
    """Limits the number of concurrent requests and the memory that they hold."""

    def __init__(self, per_user: int = PER_USER, in_all: int = MAX_COMPLETIONS, max_held: int = MAX_HELD) -> None:
        self._quota = TenantQuota(per_user, in_all)
        self._max_held = max_held
        self._held = 0

    @property
    def in_progress(self) -> int:
        """Number of requests in progress."""
        return self._quota.uses

    @contextmanager
    def request(self, user: str) -> Iterator["HeldBytes"]:
        """Count a request while the context is open. Raises InferenceError if too many requests are in progress."""
        result = self._quota.take(user)
        if result is QuotaResult.tenant_limit:
            count = self._quota.uses_of(user)
            message = (
                f"User {user} has reached the current limit on requests in progress, {count}. Wait until one completes."
            )
            raise InferenceError(429, "too_many_requests", message)
        if result is QuotaResult.exhausted:
            raise _busy()
        held = HeldBytes(self)
        try:
            yield held
        finally:
            held.release()
            self._quota.release(user)

    def hold(self, count: int) -> None:
        """Reserve `count` bytes. Raises InferenceError if not enough memory is free."""
        if self._held + count > self._max_held:
            raise _busy()
        self._held += count

    def free(self, count: int) -> None:
        """Release `count` reserved bytes."""
        self._held -= count


class HeldBytes:
    """Memory reserved for a request."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._count = 0

    def add(self, count: int) -> None:
        """Reserve `count` more bytes. Raises InferenceError if not enough memory is free."""
        self._capacity.hold(count)
        self._count += count

    def release(self) -> None:
        """Release all reserved bytes."""
        self._capacity.free(self._count)
        self._count = 0


def _busy() -> InferenceError:
    return InferenceError(
        503, "server_busy", "rlrun-server has too many requests in progress. Retry the request later."
    )
