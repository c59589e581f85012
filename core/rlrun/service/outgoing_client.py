"""HTTP requests to URLs that users name.

The process that makes them reaches more than the user does. Every address is checked, connections are made to the
address that was checked, and redirects are not followed. Errors contain nothing that the server has sent, because its
responses may not be meant for the user.
"""

import socket
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override
from yarl import URL

from rlrun.api.base.address_rules import AddressRules
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.service.client import CONNECT_SECONDS, JSON_HEADERS, RETRYABLE_STATUSES, failure_text, redirect_problem
from rlrun.service.errors import RequestError, RequestRejected, ServiceUnavailable


class AddressRefused(RequestRejected):
    """The URL leads to an address that runs must not name."""

    def __init__(self, why: str) -> None:
        super().__init__(Problem(reason=Reason.ADDRESS_NOT_ALLOWED, message=why))


class CheckedResolver(AbstractResolver):
    """Resolver whose answers are limited to the addresses that the rules allow.

    The client connects to the addresses that were checked, so a name that resolves differently later does not matter.
    """

    def __init__(self, rules: AddressRules, resolver: AbstractResolver) -> None:
        self._rules = rules
        self._resolver = resolver

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the allowed addresses of the host. Raises AddressRefused if it has only others, and OSError."""
        addresses = await self._resolver.resolve(host, port, family)
        if not addresses:
            raise OSError(f"{host} has no address")
        refusals = [self._rules.address_refusal(host, ip_address(entry["host"])) for entry in addresses]
        allowed = [entry for entry, refusal in zip(addresses, refusals, strict=True) if refusal is None]
        if not allowed:
            raise AddressRefused(next(filter(None, refusals)))
        return allowed

    @override
    async def close(self) -> None:
        await self._resolver.close()


class OutgoingClient:
    """Client with its own connections, which no request to a process of the platform shares."""

    def __init__(
        self, rules: AddressRules, make_resolver: Callable[[], AbstractResolver] = aiohttp.DefaultResolver
    ) -> None:
        self._rules = rules
        self._make_resolver = make_resolver
        self._resolver: CheckedResolver | None = None
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, *, timeout: float) -> bytes:
        """Send JSON and return the body of the successful response.

        Raises AddressRefused, ServiceUnavailable if a retry may help, and RequestRejected.
        """
        target = self._check_url(url)
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
        try:
            async with self._open_session().post(
                target, data=body, headers=JSON_HEADERS, timeout=limits, allow_redirects=False
            ) as response:
                if response.status < 300:
                    return await response.read()
                raise _error_of(response, str(target.host))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            message = f"{target.host}: {failure_text(error)}"
            raise ServiceUnavailable(Problem(reason=Reason.UNREACHABLE, message=message)) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
        if self._resolver is not None:
            await self._resolver.close()

    def _check_url(self, url: str) -> URL:
        try:
            target = URL(url)
        except ValueError as error:
            raise AddressRefused("it is not a valid URL") from error
        # aiohttp asks no resolver about a host that is an IP address.
        refusal = self._rules.host_refusal(target.scheme, target.raw_host)
        if refusal is not None:
            raise AddressRefused(refusal)
        return target

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._resolver = CheckedResolver(self._rules, self._make_resolver())
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=3.0, resolver=self._resolver, use_dns_cache=False
            )
            # No proxy of the environment: it would resolve the name again.
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session


def _error_of(response: aiohttp.ClientResponse, host: str) -> RequestError:
    status = response.status
    if status < 400:
        return RequestRejected(redirect_problem(response, host), status)
    problem = Problem(reason=f"HTTP{status}", message=f"{host} responded with {_describe_status(status)}")
    return ServiceUnavailable(problem, status) if status in RETRYABLE_STATUSES else RequestRejected(problem, status)


def _describe_status(status: int) -> str:
    """Return the status with its standard name. The server's own phrase is text of the server."""
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)
