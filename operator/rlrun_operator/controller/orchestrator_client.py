"""Client of the orchestrators' /status."""

from typing import Protocol

from rlrun.protocol.orchestrator import RunStatus
from rlrun.service.client import HttpClient
from typing_extensions import override


class OrchestratorClient(Protocol):
    """Client that reads the status of a run from its orchestrator."""

    async def status(self, namespace: str, name: str) -> RunStatus:
        """Return the status of the run. Raises RequestError."""


class HttpOrchestratorClient(OrchestratorClient):
    """`OrchestratorClient` over HTTP."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._http = HttpClient()

    @override
    async def status(self, namespace: str, name: str) -> RunStatus:
        return await self._http.call("GET", self._template.format(namespace=namespace, name=name), RunStatus)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
