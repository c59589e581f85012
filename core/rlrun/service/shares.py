"""Shares of a number of places among tenants. Pure."""

from collections import Counter
from enum import Enum


class Room(Enum):
    """Room for one more use by a tenant."""

    free = "free"
    share_used = "share used"
    """The tenant has its share."""
    full = "full"
    """All places are in use."""


class Shares:
    """Uses by tenant, who may have `per_tenant` of `total` places, and no more than stay free for the others.

    A few tenants can therefore never use all places.
    """

    def __init__(self, per_tenant: int, total: int) -> None:
        self._per_tenant = per_tenant
        self._total = total
        self._uses: Counter[str] = Counter()

    @property
    def uses(self) -> int:
        """Number of all uses."""
        return self._uses.total()

    def take(self, tenant: str) -> Room:
        """Count one more use until `release`, if there is room."""
        own, free = self._uses[tenant], self._total - self.uses
        if own >= self._per_tenant or (own and free and own >= free):
            return Room.share_used
        if free <= 0:
            return Room.full
        self._uses[tenant] += 1
        return Room.free

    def release(self, tenant: str) -> None:
        """Count one use less."""
        self._uses[tenant] -= 1
        if self._uses[tenant] <= 0:
            del self._uses[tenant]

    def uses_of(self, tenant: str) -> int:
        """Return the number of uses of the tenant."""
        return self._uses[tenant]
