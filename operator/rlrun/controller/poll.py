"""Asking a run's orchestrator how it is going."""

from typing import Protocol

from rlrun.controller.questions import Questioner
from rlrun.schema.wire import RunStatus


class Poller(Protocol):
    """Where statuses come from."""

    async def status(self, namespace: str, name: str) -> RunStatus:
        """The status of that run. Raises PollError."""


class HttpPoller:
    """`Poller` over HTTP."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._questioner = Questioner()

    async def status(self, namespace: str, name: str) -> RunStatus:
        """See `Poller`."""
        return await self._questioner.ask("GET", self._template.format(namespace=namespace, name=name), RunStatus)

    async def close(self) -> None:
        """Gives the connections back."""
        await self._questioner.close()
