"""Talking to the sidecars of serving pools."""

from typing import Protocol

import aiohttp
from pydantic import ValidationError

from rlrun.controller.observed import Obj
from rlrun.controller.poll import MAX_BYTES, POLL_SECONDS, PollError
from rlrun.schema.serving import ServingOrder, ServingReport


class Sidecars(Protocol):
    """Where reports come from and orders go to. Both methods raise PollError."""

    async def report(self, pod: Obj) -> ServingReport:
        """What the pod's sidecar says."""

    async def order(self, pod: Obj, order: ServingOrder) -> ServingReport:
        """Tells the pod's sidecar what to serve from now on."""


class HttpSidecars:
    """`Sidecars` over HTTP, one connection pool for all."""

    def __init__(self, url_template: str) -> None:
        self._template = url_template
        self._session: aiohttp.ClientSession | None = None

    async def report(self, pod: Obj) -> ServingReport:
        """See `Sidecars`."""
        return await self._ask("GET", pod, None)

    async def order(self, pod: Obj, order: ServingOrder) -> ServingReport:
        """See `Sidecars`."""
        return await self._ask("PUT", pod, order)

    async def close(self) -> None:
        """Gives the connections back."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, pod: Obj, order: ServingOrder | None) -> ServingReport:
        if self._session is None:
            # Addresses of pods are used again: no connection outlives its request by much.
            connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=5)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=POLL_SECONDS), trust_env=False
            )
        metadata = pod["metadata"]
        host = address(pod)
        url = self._template.format(
            ip=f"[{host}]" if ":" in host else host, namespace=metadata["namespace"], name=metadata["name"]
        )
        body = None if order is None else order.to_json_dict()
        try:
            async with self._session.request(method, url, json=body) as response:
                data = await response.content.read(MAX_BYTES)
                if response.status != 200:
                    raise PollError(f"{method} {url} answers {response.status}: {data[:200].decode(errors='replace')}")
                return ServingReport.model_validate_json(data)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PollError(f"{method} {url}: {type(error).__name__} {error}") from error
        except ValidationError as error:
            raise PollError(f"{url} answers something else than a report: {error.error_count()} errors") from error


def address(pod: Obj) -> str:
    """The pod's IP address, empty before it has one."""
    return str(pod.get("status", {}).get("podIP") or "")
