"""Reads the values of PriorityClasses, by which the queue is ordered."""

import logging
import time
from collections.abc import Callable

from rlrun.api.run import RLRunSpec
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import PRIORITY_CLASS

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.spec import check_priority
from rlrun_operator.runtime.cache_expiry import drop_expired

log = logging.getLogger(__name__)

KEPT_SECONDS = 60.0
"""Seconds for which a value is cached."""


class PriorityClasses:
    """Reads PriorityClasses by name, and caches them."""

    def __init__(
        self, cluster: AsyncKubeClient, settings: OperatorSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._values: dict[str, tuple[float, int]] = {}

    async def value_of(self, spec: RLRunSpec) -> int:
        """Return the value of the run's PriorityClass, or 0 if the run has none or must not use it, or if the class
        does not exist or the operator may not read it. Raises ApiError.
        """
        name = spec.priority_class_name
        if name is None or check_priority(spec, self._settings) is not None:
            return 0
        drop_expired(self._values, self._clock() - KEPT_SECONDS)
        if name in self._values:
            return self._values[name][1]
        value = await self._read(name)
        self._values[name] = self._clock(), value
        return value

    async def _read(self, name: str) -> int:
        try:
            priority_class = await self._cluster.get(PRIORITY_CLASS, None, name)
        except ApiError as error:
            if error.status != 403:
                raise
            log.warning(
                "The queue uses priority 0 for PriorityClass %s, because the operator is not allowed to read it (%s)",
                name,
                error,
            )
            return 0
        return 0 if priority_class is None else int(priority_class.get("value") or 0)
