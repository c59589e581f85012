"""Client of the orchestrators' /status."""

from typing import Protocol

from rlrun.protocol.access import bearer
from rlrun.protocol.orchestrator import RunStatus
from rlrun.service.client import HttpClient
from typing_extensions import override


class OrchestratorClient(Protocol):
    """Client that reads the status of a run from its orchestrator."""

    async def status(self, namespace: str, name: str, token: str | None = None) -> RunStatus:
        """Return the status of the run, which asks for its token. Raises RequestError."""


class HttpOrchestratorClient(OrchestratorClient):
    """`OrchestratorClient` over HTTP."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._http = HttpClient()

    @override
    async def status(self, namespace: str, name: str, token: str | None = None) -> RunStatus:
        url = self._template.format(namespace=namespace, name=name)
        return await self._http.call("GET", url, RunStatus, headers=bearer(token))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()
