"""Endpoints to which agents' programs send their requests.

verifiers puts a server between an agent's program and the model's endpoint. Here each rollout has its own server, whose
requests go to a gateway base URL with the rollout's id: the gateway records each agent's conversation separately, and
no connection outlives its rollout.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from verifiers.v1 import EvalClientConfig
from verifiers.v1.interception import Interception, InterceptionServer

NO_KEY = "GATEWAY_NEEDS_NO_KEY"
"""Name of the API key variable in client configurations for the gateway. The gateway needs no key, so the variable is
unset; its name identifies these configurations.
"""


def gateway_client(base_url: str) -> Any:
    """Return a client configuration for a group's gateway URL."""
    return EvalClientConfig(base_url=base_url, api_key_var=NO_KEY)


def asks_gateway(client: Any) -> bool:
    """Return True if requests with this configuration go to the gateway, which records them for training."""
    return client is not None and client.api_key_var == NO_KEY


def rollout_url(base_url: str, rollout: str) -> str:
    """Return the base URL for a rollout of a group."""
    return f"{base_url.rstrip('/').removesuffix('/v1')}/rollouts/{rollout}/v1"


class RolloutEndpoints(Interception):  # type: ignore[misc]
    """Servers of rollouts. Each sends requests to the gateway under its rollout's id, which is the trace's id."""

    def __init__(self, state_secrets: Collection[str]) -> None:
        """`state_secrets` are secrets with which shared tool servers read and write the state of rollouts."""
        super().__init__()
        self._state_secrets = tuple(state_secrets)

    async def start(self) -> None:
        """Do nothing, because servers start with their rollouts."""

    @asynccontextmanager
    async def acquire(self, session: Any) -> AsyncIterator[Any]:
        """Serve one rollout, and yield the URL and the secrets of its server."""
        client = session.ctx.client
        if asks_gateway(client):
            own = client.model_copy(update={"base_url": rollout_url(client.base_url, session.trace.id)})
            session.ctx = replace(session.ctx, client=own)
        server = InterceptionServer(state_service_secrets=self._state_secrets)
        async with server, server.acquire(session) as slot:
            yield slot
