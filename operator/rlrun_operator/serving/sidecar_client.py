"""Client of the sidecars of serving pools, and of the sidecars and trainers of shared pools."""

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from rlrun.constants import SERVING_LABEL, TRAINER_PORT, Role
from rlrun.kube.objects import Obj, label
from rlrun.kube.pods import role_of
from rlrun.protocol.access import bearer
from rlrun.protocol.serving import DesiredAdapters, ServingReport
from rlrun.protocol.shared_pool import PoolOrder, TrainerOrder, TrainerSessions
from rlrun.service.client import HttpClient

from rlrun_operator.resources.access.run_tokens import pool_token, shared_pool_token

ResponseT = TypeVar("ResponseT", PoolOrder, TrainerSessions)


class PoolSidecarClient:
    """Client of the processes of pools, with the token of the pod's pool. Requests raise RequestError."""

    def __init__(
        self,
        url_template: str,
        token_key: bytes,
        clock: Callable[[], datetime],
        trainer_template: str = f"http://{{ip}}:{TRAINER_PORT}/sessions",
    ) -> None:
        """`clock` returns the API server's time, so that the numbers of two operators' lists can be compared.

        `url_template` is the URL of a pod's sidecar, and `trainer_template` that of a pod's trainer, with the
        placeholders `{ip}`, `{namespace}` and `{name}`.
        """
        self._template = url_template
        self._trainer_template = trainer_template
        self._token_key = token_key
        self._clock = clock
        self._http = HttpClient()

    async def fetch_report(self, pod: Obj) -> ServingReport:
        """Return the report of the pod's sidecar."""
        return await self._http.call("GET", self._url(pod), ServingReport, headers=self._headers(pod))

    async def push_desired(self, pod: Obj, desired: DesiredAdapters) -> ServingReport:
        """Send the desired adapters to the pod's sidecar and return its report."""
        url, body = self._url(pod), desired.to_json_dict()
        return await self._http.call("PUT", url, ServingReport, body, headers=self._headers(pod))

    async def push_order(self, pod: Obj, order: PoolOrder) -> None:
        """Send a `PoolOrder` to the pod's sidecar, with the current time as its `number`."""
        await self._push(pod, order, PoolOrder)

    async def push_trainer_order(self, pod: Obj, order: TrainerOrder) -> TrainerSessions:
        """Send a `TrainerOrder` to the pod's trainer, and return the trainer's sessions. The order is sent
        with the current time as its `number`.
        """
        return await self._push(pod, order, TrainerSessions)

    async def _push(self, pod: Obj, order: PoolOrder | TrainerOrder, response: type[ResponseT]) -> ResponseT:
        url = f"{self._url(pod).rpartition('/')[0]}/pool-order"
        token = shared_pool_token(self._token_key, pod["metadata"]["namespace"], label(pod, SERVING_LABEL) or "")
        body = order.model_copy(update={"number": int(self._clock().timestamp() * 1000)}).to_json_dict()
        return await self._http.call("PUT", url, response, body, headers=bearer(token))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def _headers(self, pod: Obj) -> dict[str, str]:
        return bearer(pool_token(self._token_key, pod["metadata"]["namespace"], label(pod, SERVING_LABEL) or ""))

    def _url(self, pod: Obj) -> str:
        metadata, host = pod["metadata"], address(pod)
        template = self._trainer_template if role_of(pod) == Role.trainer else self._template
        return template.format(
            ip=f"[{host}]" if ":" in host else host, namespace=metadata["namespace"], name=metadata["name"]
        )


def address(pod: Obj) -> str:
    """Return the pod's IP address, or an empty string if it has none yet."""
    return str(pod.get("status", {}).get("podIP") or "")
