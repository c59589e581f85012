"""Talking to the sidecars of serving pools."""

from typing import Protocol

from rlrun.controller.questions import Questioner
from rlrun.kube.objects import Obj
from rlrun.schema.serving import ServingOrder, ServingReport


class Sidecars(Protocol):
    """Where reports come from and orders go to. Both methods raise PollError."""

    async def report(self, pod: Obj) -> ServingReport:
        """What the pod's sidecar says."""

    async def order(self, pod: Obj, order: ServingOrder) -> ServingReport:
        """Tells the pod's sidecar what to serve from now on."""


class HttpSidecars:
    """`Sidecars` over HTTP."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._questioner = Questioner()

    async def report(self, pod: Obj) -> ServingReport:
        """See `Sidecars`."""
        return await self._questioner.ask("GET", self._url(pod), ServingReport)

    async def order(self, pod: Obj, order: ServingOrder) -> ServingReport:
        """See `Sidecars`."""
        return await self._questioner.ask("PUT", self._url(pod), ServingReport, order.to_json_dict())

    async def close(self) -> None:
        """Gives the connections back."""
        await self._questioner.close()

    def _url(self, pod: Obj) -> str:
        metadata, host = pod["metadata"], address(pod)
        return self._template.format(
            ip=f"[{host}]" if ":" in host else host, namespace=metadata["namespace"], name=metadata["name"]
        )


def address(pod: Obj) -> str:
    """The pod's IP address, empty before it has one."""
    return str(pod.get("status", {}).get("podIP") or "")
