"""Limits on the connections of each run and namespace, so that one tenant cannot exhaust the proxy."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from rlrun.constants import Reason
from rlrun.protocol.egress import EgressGrant
from rlrun.service.tenant_quota import QuotaResult, TenantQuota

from rlrun_egress_proxy.connect_request import EgressRefused


class TunnelLimits:
    """Limits on the tunnels of all runs. Not thread-safe: use it from one event loop only."""

    def __init__(self, per_run: int, connections: int) -> None:
        """`connections` is the proxy's total limit. A namespace may use half of it."""
        self._runs = TenantQuota(per_run, connections)
        self._namespaces = TenantQuota(max(1, connections // 2), connections)

    @property
    def open(self) -> int:
        """Number of open tunnels."""
        return self._runs.uses

    @contextmanager
    def tunnel(self, grant: EgressGrant) -> Iterator[None]:
        """Count a tunnel within this context. Raises EgressRefused if the run or its namespace has too many."""
        with _use(self._namespaces, "namespace", grant.namespace), _use(self._runs, "run", grant.uid):
            yield


@contextmanager
def _use(quota: TenantQuota, kind: str, tenant: str) -> Iterator[None]:
    if quota.take(tenant) is not QuotaResult.granted:
        raise EgressRefused(
            HTTPStatus.TOO_MANY_REQUESTS,
            Reason.TOO_MANY_REQUESTS,
            f"The {kind} has {quota.uses_of(tenant)} of the proxy's {quota.uses} open connections, which is its "
            "current limit. Close one, or reuse connections.",
        )
    try:
        yield
    finally:
        quota.release(tenant)
