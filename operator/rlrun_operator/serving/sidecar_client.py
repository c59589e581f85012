"""Client of the sidecars of serving pools."""

from typing import Protocol

from rlrun.kube.objects import Obj
from rlrun.protocol.serving import DesiredAdapters, ServingReport
from rlrun.service.client import HttpClient
from typing_extensions import override


class Sidecars(Protocol):
    """Client of the sidecars of serving pools. Both methods raise RequestError."""

    async def fetch_report(self, pod: Obj) -> ServingReport:
        """Return the report of the pod's sidecar."""

    async def push_desired(self, pod: Obj, desired: DesiredAdapters) -> ServingReport:
        """Send the desired adapters to the pod's sidecar and return its report."""


class HttpSidecars(Sidecars):
    """`Sidecars` over HTTP."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._http = HttpClient()

    @override
    async def fetch_report(self, pod: Obj) -> ServingReport:
        return await self._http.call("GET", self._url(pod), ServingReport)

    @override
    async def push_desired(self, pod: Obj, desired: DesiredAdapters) -> ServingReport:
        return await self._http.call("PUT", self._url(pod), ServingReport, desired.to_json_dict())

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def _url(self, pod: Obj) -> str:
        metadata, host = pod["metadata"], address(pod)
        return self._template.format(
            ip=f"[{host}]" if ":" in host else host, namespace=metadata["namespace"], name=metadata["name"]
        )


def address(pod: Obj) -> str:
    """Return the pod's IP address, empty before it has one."""
    return str(pod.get("status", {}).get("podIP") or "")
