"""Client of the adapter sidecar of one inference replica."""

import aiohttp
from rlrun.protocol.inference import AdapterList, LoadRequest
from rlrun.protocol.policy import PolicyRef
from rlrun.service.client import parse, request

SHORT_SECONDS = 15.0
LOAD_SECONDS = 300.0
"""Seconds for the download of an adapter and its load into the engine."""


class SidecarClient:
    """Client of one adapter sidecar. All methods raise ServiceUnavailable and RequestRejected."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = f"{url.rstrip('/')}/adapters"

    async def adapters(self) -> AdapterList:
        """Return what the engine serves, by its own list."""
        return parse(AdapterList, await request(self._http, "GET", self._url, timeout=SHORT_SECONDS), self._url)

    async def load(self, policy: PolicyRef, fallback: str | None = None) -> AdapterList:
        """Load the policy under its name and return once the engine has confirmed it.

        `fallback`: URL of the policy's folder at the trainer, used if S3 does not have it or is unreachable.
        """
        wanted = LoadRequest.model_validate(policy.model_dump() | {"fallback": fallback})
        body = wanted.model_dump_json(by_alias=True, exclude_none=True).encode()
        answer = await request(self._http, "PUT", f"{self._url}/{policy.name}", body=body, timeout=LOAD_SECONDS)
        return parse(AdapterList, answer, self._url)

    async def unload(self, name: str) -> AdapterList:
        """Unload an adapter that no group uses."""
        answer = await request(self._http, "DELETE", f"{self._url}/{name}", timeout=SHORT_SECONDS)
        return parse(AdapterList, answer, self._url)
