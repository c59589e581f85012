"""Client of the orchestrators' status."""

from typing import Protocol

from rlrun.protocol.orchestrator import RunStatus
from rlrun.service.client import HttpClient
from typing_extensions import override


class Poller(Protocol):
    """Reads the status of a run from its orchestrator."""

    async def status(self, namespace: str, name: str) -> RunStatus:
        """Return the status of that run. Raises RequestError."""


class HttpPoller(Poller):
    """`Poller` over HTTP."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._http = HttpClient()

    @override
    async def status(self, namespace: str, name: str) -> RunStatus:
        return await self._http.call("GET", self._template.format(namespace=namespace, name=name), RunStatus)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
