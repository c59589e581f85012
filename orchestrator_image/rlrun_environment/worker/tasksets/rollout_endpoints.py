"""Endpoints that the programs of agents send their requests to.

verifiers puts a server between an agent's program and the model's endpoint. Here each rollout has a server of its own,
whose requests go to a base URL of the gateway with the rollout's id: the gateway records each agent's conversation
apart, and no connection outlives its rollout.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from verifiers.v1 import EvalClientConfig
from verifiers.v1.interception import Interception, InterceptionServer

NO_KEY = "GATEWAY_NEEDS_NO_KEY"
"""Variable of the key for the gateway, which needs none. It identifies the configurations of the gateway."""


def gateway_client(base_url: str) -> Any:
    """Return the configuration of a client for the gateway's URL of a group."""
    return EvalClientConfig(base_url=base_url, api_key_var=NO_KEY)


def asks_gateway(client: Any) -> bool:
    """Return whether requests with this configuration go to the gateway, which records them for training."""
    return client is not None and client.api_key_var == NO_KEY


def rollout_url(base_url: str, rollout: str) -> str:
    """Return the base URL of a rollout of a group."""
    return f"{base_url.rstrip('/').removesuffix('/v1')}/rollouts/{rollout}/v1"


class RolloutEndpoints(Interception):  # type: ignore[misc]
    """Gives each rollout a server that asks the gateway under the rollout's id, which is that of its trace."""

    def __init__(self, state_secrets: Collection[str]) -> None:
        """`state_secrets`: secrets of shared tool servers, by which they read and write the state of rollouts."""
        super().__init__()
        self._state_secrets = tuple(state_secrets)

    async def start(self) -> None:
        """Do nothing: servers start with their rollouts."""

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
