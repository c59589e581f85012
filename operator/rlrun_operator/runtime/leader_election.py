"""Leader election with a Lease: one operator acts, the others wait.

Protocol and times are those of Kubernetes' own components: the holder renews the Lease every 2 s and stops after 10 s
without a successful renewal. Another process takes over after 15 s without a change, or after the duration in the Lease
if it is longer. Ages are measured with the local monotonic clock only. A process that loses the Lease must exit.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import LEASE
from rlrun.kube.objects import Obj

log = logging.getLogger(__name__)

DURATION_SECONDS = 15.0
RENEW_SHARE = 2 / 3
"""Fraction of the Lease duration after which the holder stops if it could not renew the Lease."""
RETRY_SECONDS = 2.0


class LeaseLost(Exception):
    """Raised if the Lease was not renewed in time, so that another process may hold it."""


class LeaderElection:
    """Leader election of one process on one Lease object."""

    def __init__(
        self,
        cluster: AsyncKubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration: float = DURATION_SECONDS,
        retry: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._duration = duration
        self._renew_deadline = RENEW_SHARE * duration
        self._retry = retry
        self._clock = clock
        self._observed: tuple[Any, ...] | None = None
        self._observed_at = 0.0
        self._renewed_at = -math.inf

    def is_held(self) -> bool:
        """Return whether this process holds the Lease and its renewal deadline has not passed. Can be called from any
        thread.

        The deadline passes seconds before another process can take over. It is checked against the clock, because the
        event loop may be blocked.
        """
        return self._clock() < self._renewed_at + self._renew_deadline

    async def acquire(self) -> None:
        """Wait until this process holds the Lease."""
        while not await self._try():  # noqa: ASYNC110
            await asyncio.sleep(self._retry)
        log.info("Acquired Lease %s/%s as %s", self._namespace, self._name, self.identity)

    async def hold(self) -> None:
        """Renew the Lease until cancelled. Raises LeaseLost."""
        while True:
            left = self._renewed_at + self._renew_deadline - self._clock()
            await asyncio.sleep(max(0.0, min(self._retry, left)))
            left = self._renewed_at + self._renew_deadline - self._clock()
            try:
                renewed = await asyncio.wait_for(self._try(), max(left, 0.1))
            except TimeoutError:
                renewed = False
            if not renewed and self._clock() - self._renewed_at >= self._renew_deadline:
                raise LeaseLost(
                    f"Lease {self._namespace}/{self._name} was not renewed for {self._renew_deadline:.0f} s"
                )

    async def release(self) -> None:
        """Release the Lease, so that another process can take over immediately. An ApiError is only logged, because the
        process is ending.
        """
        self._renewed_at = -math.inf
        try:
            lease = await self._cluster.get(LEASE, self._namespace, self._name)
            if lease and lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                await self._cluster.replace(lease)
        except ApiError as error:
            log.warning("Could not release the Lease; another process takes over when it expires: %s", error)

    async def _try(self) -> bool:
        try:
            return await self._claim()
        except ApiError as error:
            if error.status != 409:
                log.warning("Could not acquire or renew Lease %s/%s: %s", self._namespace, self._name, error)
            return False

    async def _claim(self) -> bool:
        lease = await self._cluster.get(LEASE, self._namespace, self._name)
        started = self._clock()
        if lease is None:
            await self._cluster.create(
                {
                    "apiVersion": LEASE.api_version,
                    "kind": LEASE.kind,
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": self._spec(0, _now()),
                }
            )
            self._renewed_at = started
            return True
        spec = lease.get("spec") or {}
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._observed:
            self._observed, self._observed_at = record, started
        is_holder = spec.get("holderIdentity") == self.identity
        # A holder with different settings relies on its own duration.
        duration = max(self._duration, spec.get("leaseDurationSeconds") or 0)
        if not is_holder and spec.get("holderIdentity") and self._clock() - self._observed_at < duration:
            return False
        transitions = int(spec.get("leaseTransitions") or 0)
        acquired = spec.get("acquireTime") if is_holder else None
        # With the resourceVersion, one of two concurrent claims fails with 409.
        lease["spec"] = self._spec(transitions if is_holder else transitions + 1, acquired or _now())
        await self._cluster.replace(lease)
        self._renewed_at = started
        return True

    def _spec(self, transitions: int, acquired: str) -> Obj:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._duration) or 1,
            "acquireTime": acquired,
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
