"""Observation of what runs need for the egress proxy: the signing key, and the hosts that a namespace is allowed."""

import time
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rlrun.api.base.names import EgressHost
from rlrun.constants import EGRESS_ANNOTATION
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import NAMESPACE, SECRET
from rlrun.kube.objects import annotation
from rlrun.protocol.egress import MIN_KEY_BYTES

from rlrun_operator.config.settings import EgressSettings
from rlrun_operator.resources.egress import KEY
from rlrun_operator.resources.platform import decode_secret

CACHE_SECONDS = 10.0
"""Time for which an answer is used for other runs of the namespace."""
_HOST: TypeAdapter[str] = TypeAdapter(EgressHost)


class EgressObserver:
    """Reader of the key and of the namespaces' annotations. Without settings it reads nothing."""

    def __init__(self, cluster: AsyncKubeClient, settings: EgressSettings | None) -> None:
        self._cluster = cluster
        self._settings = settings
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def observe(self, namespace: str) -> dict[str, Any]:
        """Return the fields `egress_key` and `egress_hosts` of a run's observation. Raises ApiError."""
        if self._settings is None:
            return {}
        known = self._known.get(namespace)
        if known is not None and time.monotonic() - known[0] < CACHE_SECONDS:
            return known[1]
        ref = self._settings.key_secret
        secret = await self._cluster.get(SECRET, ref.namespace, ref.name)
        key = decode_secret(secret).get(KEY, "").encode() if secret is not None else b""
        found = await self._cluster.get(NAMESPACE, None, namespace)
        parts: dict[str, Any] = {
            "egress_key": key if len(key) >= MIN_KEY_BYTES else None,
            "egress_hosts": allowed_hosts(annotation(found, EGRESS_ANNOTATION) if found else None),
        }
        self._known[namespace] = (time.monotonic(), parts)
        return parts


def allowed_hosts(text: str | None) -> tuple[str, ...]:
    """Return the valid hosts of a namespace's annotation. An invalid one allows nothing."""
    return tuple(host for host in map(str.strip, (text or "").split(",")) if _is_host(host))


def _is_host(text: str) -> bool:
    try:
        _HOST.validate_python(text)
    except ValidationError:
        return False
    return True
