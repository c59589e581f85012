"""One environment server, seen from here."""

import aiohttp
from rlrun.schema.wire import EnvironmentInfo, GroupRequest, GroupResult

from rlrun_orchestrator.http import parse, request

SHORT_SECONDS = 15.0
GRACE_SECONDS = 30.0
"""Beyond a group's own deadline, for the server to say so itself."""


class EnvironmentClient:
    """Raises `Unavailable` while the server does not answer and `Refused` when it cannot do what it was asked."""

    def __init__(self, http: aiohttp.ClientSession, name: str, url: str) -> None:
        self.name = name
        self._http = http
        self._url = url.rstrip("/")

    async def info(self) -> EnvironmentInfo:
        """What the server holds, ready or not."""
        url = f"{self._url}/info"
        return parse(EnvironmentInfo, await request(self._http, "GET", url, timeout=SHORT_SECONDS), url)

    async def roll_out(self, group: GroupRequest) -> GroupResult:
        """One example's rollouts, scored. Takes up to the group's deadline."""
        body = group.model_dump_json(by_alias=True, exclude_none=True).encode()
        timeout = group.deadline_seconds + GRACE_SECONDS
        url = f"{self._url}/groups"
        return parse(GroupResult, await request(self._http, "POST", url, body=body, timeout=timeout), url)
