"""Client for the adapter sidecar of one inference replica."""

import aiohttp
from rlrun.api.base.received import limits_of
from rlrun.protocol.inference import AdapterList, LoadRequest
from rlrun.protocol.policy import PolicyRef
from rlrun.service.client import parse, request

SHORT_SECONDS = 15.0
LOAD_SECONDS = 300.0
"""Time limit in seconds for downloading an adapter and loading it into the engine."""


class SidecarClient:
    """Client for one adapter sidecar. All methods raise ServiceUnavailable and RequestRejected."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = f"{url.rstrip('/')}/adapters"

    async def adapters(self) -> AdapterList:
        """Ask the engine which policies it serves, and return them."""
        return await self._call("GET", "", SHORT_SECONDS)

    async def load(self, policy: PolicyRef, fallback: str | None = None) -> AdapterList:
        """Load the policy under its name, and return once the engine has confirmed it.

        `fallback` is the URL of the policy's folder at the trainer, used if S3 lacks the policy or is unreachable.
        """
        wanted = LoadRequest.model_validate(policy.model_dump() | {"fallback": fallback})
        body = wanted.model_dump_json(by_alias=True, exclude_none=True).encode()
        return await self._call("PUT", f"/{policy.name}", LOAD_SECONDS, body)

    async def unload(self, name: str) -> AdapterList:
        """Unload an adapter that no group uses."""
        return await self._call("DELETE", f"/{name}", SHORT_SECONDS)

    async def _call(self, method: str, path: str, timeout: float, body: bytes | None = None) -> AdapterList:
        largest = limits_of(AdapterList).size
        answer = await request(self._http, method, self._url + path, body=body, timeout=timeout, max_bytes=largest)
        return parse(AdapterList, answer, self._url)
