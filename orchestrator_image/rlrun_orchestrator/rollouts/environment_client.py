"""Client for an environment server."""

import asyncio

import aiohttp
from rlrun.constants import Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.environment import (
    MAX_RESPONSE_BYTES,
    Demonstration,
    DemonstrationRequest,
    EnvironmentInfo,
    GroupRequest,
    GroupResult,
    max_result_bytes,
)
from rlrun.protocol.problem import Problem
from rlrun.service.client import parse, request
from rlrun.service.errors import RequestRejected

SHORT_SECONDS = 15.0
GRACE_SECONDS = 30.0
"""Seconds after a group's deadline for the server to report that the deadline was exceeded."""


class EnvironmentClient:
    """Client for one environment server.

    Requests raise ServiceUnavailable while the server does not respond, and RequestRejected if the server cannot serve
    them.
    """

    def __init__(
        self, http: aiohttp.ClientSession, name: str, url: str, *, group_deadline: float, token: str | None = None
    ) -> None:
        """`group_deadline` is the time in seconds for one group of rollouts, including all turns and scoring. `token`
        is the environments' token. The pods of environments must not see the run's token.
        """
        self.name = name
        self.group_deadline = group_deadline
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"Authorization": "", **bearer(token)}

    async def info(self) -> EnvironmentInfo:
        """Return the state of the server, ready or not."""
        url = f"{self._url}/info"
        return parse(EnvironmentInfo, await self._request("GET", url, None, SHORT_SECONDS, MAX_RESPONSE_BYTES), url)

    async def roll_out(self, group: GroupRequest) -> GroupResult:
        """Return the scored rollouts of one example. Takes up to the group's deadline."""
        body = group.model_dump_json(by_alias=True, exclude_none=True).encode()
        timeout = group.deadline_seconds + GRACE_SECONDS
        url = f"{self._url}/groups"
        answer = await self._request("POST", url, body, timeout, max_result_bytes(group.rollouts))
        # Parsing megabytes of conversations takes a while and must not block the gateway.
        result = await asyncio.to_thread(parse, GroupResult, answer, url)
        if result.group_id != group.group_id:
            message = f"{url} returned group {result.group_id} for a request for group {group.group_id}"
            raise RequestRejected(Problem(reason=Reason.ANSWER_INVALID, message=message[:500]))
        return result

    async def demonstration(self, request_body: DemonstrationRequest) -> Demonstration:
        """Return an example's reference answer from the dataset. Raises RequestRejected if there is none."""
        url = f"{self._url}/demonstrations"
        body = request_body.model_dump_json(by_alias=True, exclude_none=True).encode()
        return parse(Demonstration, await self._request("POST", url, body, SHORT_SECONDS, MAX_RESPONSE_BYTES), url)

    async def close(self) -> None:
        """Do nothing, because the connections belong to `http`."""

    async def _request(self, method: str, url: str, body: bytes | None, timeout: float, max_bytes: int) -> bytes:
        return await request(
            self._http, method, url, body=body, timeout=timeout, max_bytes=max_bytes, headers=self._headers
        )
