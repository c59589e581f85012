"""Quota for tenants that share a limited number of slots."""

from collections import Counter
from enum import Enum


class QuotaResult(Enum):
    """Outcome of a tenant's request for one more slot."""

    granted = "granted"
    tenant_limit = "tenant limit"
    """The tenant has reached its limit."""
    exhausted = "exhausted"
    """All slots are in use."""


class TenantQuota:
    """Counter of slots by tenant. A tenant gets another slot only while it uses fewer slots than `per_tenant` and
    fewer slots than are free, so that a few tenants can never use all `total` slots.
    """

    def __init__(self, per_tenant: int, total: int) -> None:
        self._per_tenant = per_tenant
        self._total = total
        self._uses: Counter[str] = Counter()

    @property
    def uses(self) -> int:
        """Number of slots in use."""
        return self._uses.total()

    def take(self, tenant: str) -> QuotaResult:
        """Take a slot for the tenant if one is available. The tenant keeps the slot until `release`."""
        own, free = self._uses[tenant], self._total - self.uses
        if own >= self._per_tenant or (own and free and own >= free):
            return QuotaResult.tenant_limit
        if free <= 0:
            return QuotaResult.exhausted
        self._uses[tenant] += 1
        return QuotaResult.granted

    def release(self, tenant: str) -> None:
        """Release one slot of the tenant."""
        self._uses[tenant] -= 1
        if self._uses[tenant] <= 0:
            del self._uses[tenant]

    def uses_of(self, tenant: str) -> int:
        """Return the number of slots that the tenant uses."""
        return self._uses[tenant]
