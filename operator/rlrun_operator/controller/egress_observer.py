"""Reads the egress proxy's signing key and the hosts that namespaces may reach."""

import time
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rlrun.api.base.names import EgressHost
from rlrun.constants import EGRESS_ANNOTATION, Reason
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import NAMESPACE, SECRET
from rlrun.kube.objects import annotation
from rlrun.protocol.problem import Problem
from rlrun.protocol.signed_text import MIN_KEY_BYTES

from rlrun_operator.config.settings import EgressSettings, SecretRef
from rlrun_operator.resources.access.egress import KEY
from rlrun_operator.resources.access.observed_secret import decode_secret
from rlrun_operator.runtime.cache_expiry import drop_expired

CACHE_SECONDS = 10.0
"""Seconds for which a result is reused for other runs of the namespace."""
FORBIDDEN = 403
_HOST: TypeAdapter[str] = TypeAdapter(EgressHost)


class EgressObserver:
    """Reads the egress proxy's signing key and the namespaces' annotations, or nothing if there is no egress proxy."""

    def __init__(
        self,
        cluster: AsyncKubeClient,
        settings: EgressSettings | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    async def observe(self, namespace: str) -> dict[str, Any]:
        """Return the fields `egress_*` of a run's observation.

        A missing permission is reported as a problem of the run, so that the run can still be stopped. Raises ApiError
        for other errors.
        """
        if self._settings is None:
            return {}
        drop_expired(self._known, self._clock() - CACHE_SECONDS)
        if namespace in self._known:
            return self._known[namespace][1]
        try:
            parts = await self._read(namespace, self._settings.key_secret)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            parts = _unavailable(
                f"The operator is not allowed to read the objects for the egress proxy ({error}). The platform team "
                f"must extend the operator's role."
            )
        self._known[namespace] = (self._clock(), parts)
        return parts

    async def _read(self, namespace: str, ref: SecretRef) -> dict[str, Any]:
        secret = await self._cluster.get(SECRET, ref.namespace, ref.name)
        key = decode_secret(secret).get(KEY, "").encode() if secret is not None else b""
        if len(key) < MIN_KEY_BYTES:
            return _unavailable(
                f"Secret {ref.namespace}/{ref.name}, with the signing key for the egress proxy, does not exist or has "
                f"no `{KEY}` of at least {MIN_KEY_BYTES} bytes. The platform team must create or correct it."
            )
        namespace_object = await self._cluster.get(NAMESPACE, None, namespace)
        hosts = allowed_hosts(annotation(namespace_object, EGRESS_ANNOTATION) if namespace_object else None)
        return {"egress_key": key, "egress_hosts": hosts}


def _unavailable(message: str) -> dict[str, Any]:
    problem = Problem(reason=Reason.EGRESS_UNAVAILABLE, message=message)
    return {"egress_key": None, "egress_hosts": (), "egress_problem": problem}


def allowed_hosts(text: str | None) -> tuple[str, ...]:
    """Return the valid hosts in a namespace's annotation. Invalid hosts are ignored."""
    return tuple(host for host in map(str.strip, (text or "").split(",")) if _is_host(host))


def _is_host(text: str) -> bool:
    try:
        _HOST.validate_python(text)
    except ValidationError:
        return False
    return True
