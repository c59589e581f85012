"""Sends HTTP requests to URLs that users provide, from a process that can reach more than those users can.

Every address is checked, connections are made to the checked address, and redirects are not followed. Errors contain no
text from the server, because its responses may not be meant for the user. A proxy resolves host names itself, so if one
is used, this module checks the host in the URL and the addresses that this process resolves for it, but cannot check
the address to which the proxy connects.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from typing_extensions import override
from yarl import URL

from rlrun.api.base.address_rules import AddressRules
from rlrun.api.base.proxy_rules import ProxyRules
from rlrun.api.base.received import ENGINE_LIMITS
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.service.client import (
    CONNECT_SECONDS,
    JSON_HEADERS,
    RETRYABLE_STATUSES,
    failure_text,
    read_body,
    redirect_problem,
)
from rlrun.service.errors import RequestError, RequestRejected, ServiceUnavailable


class AddressRefused(RequestRejected):
    """Raised if the URL is invalid or leads to an address that runs must not use. The message only says why."""

    def __init__(self, why: str) -> None:
        super().__init__(Problem(reason=Reason.ADDRESS_NOT_ALLOWED, message=why))


class CheckedResolver(AbstractResolver):
    """Resolver that returns only addresses that the rules allow.

    The client connects to the checked addresses, so it does not matter if the name resolves differently later.
    """

    def __init__(self, rules: AddressRules, resolver: AbstractResolver) -> None:
        self._rules = rules
        self._resolver = resolver

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the host's allowed addresses. Raises AddressRefused if all are refused, OSError if it has none."""
        checked = await self._check(host, port, family)
        allowed = [entry for entry, refusal in checked if refusal is None]
        if not allowed:
            raise AddressRefused(next(refusal for _, refusal in checked if refusal))
        return allowed

    async def require_all(self, host: str, port: int) -> None:
        """Raise AddressRefused if any address of the host is refused, OSError if the host has none."""
        for _, refusal in await self._check(host, port, socket.AF_UNSPEC):
            if refusal is not None:
                raise AddressRefused(refusal)

    async def _check(
        self, host: str, port: int, family: socket.AddressFamily
    ) -> list[tuple[ResolveResult, str | None]]:
        """Return the addresses of the host, each with the reason to refuse it, or None. Raises OSError."""
        addresses = await self._resolver.resolve(host, port, family)
        if not addresses:
            raise OSError(f"{host} has no address")
        return [(entry, self._rules.address_refusal(host, ip_address(entry["host"]))) for entry in addresses]

    @override
    async def close(self) -> None:
        await self._resolver.close()


class OutgoingClient:
    """Client with separate connections, which are never used for requests to the platform's processes."""

    def __init__(
        self,
        rules: AddressRules,
        make_resolver: Callable[[], AbstractResolver] = aiohttp.DefaultResolver,
        proxies: ProxyRules | None = None,
    ) -> None:
        """If `proxies` is None, the proxy variables of the environment are used."""
        self._rules = rules
        self._make_resolver = make_resolver
        self._proxies = ProxyRules.of_environment(os.environ) if proxies is None else proxies
        self._resolver: CheckedResolver | None = None
        self._session: aiohttp.ClientSession | None = None
        self._proxied: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, *, timeout: float, max_bytes: int = ENGINE_LIMITS.size) -> bytes:
        """Send JSON and return the body of the successful response.

        Raises AddressRefused if the URL is invalid or its address is refused, ServiceUnavailable if a retry may help,
        and RequestRejected for other responses, including those larger than `max_bytes`.
        """
        target = self._check_url(url)
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
        try:
            proxy = self._proxies.proxy_of(str(target))
            if proxy is not None:
                await self._check_addresses(target)
            session = self._open_session() if proxy is None else self._open_proxied()
            async with session.post(
                target, data=body, headers=JSON_HEADERS, timeout=limits, allow_redirects=False, proxy=proxy
            ) as response:
                if response.status < 300:
                    return await read_body(response, str(target.host), max_bytes)
                raise _error_of(response, str(target.host))
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            message = f"{target.host}: {failure_text(error)}"
            raise ServiceUnavailable(Problem(reason=Reason.UNREACHABLE, message=message)) from error

    async def close(self) -> None:
        """Close the connections."""
        for session in (self._session, self._proxied):
            if session is not None:
                await session.close()
        if self._resolver is not None:
            await self._resolver.close()

    def _check_url(self, url: str) -> URL:
        try:
            target = URL(url)
        except ValueError as error:
            raise AddressRefused("it is not a valid URL") from error
        # aiohttp does not call the resolver for IP addresses.
        refusal = self._rules.host_refusal(target.scheme, target.raw_host)
        if refusal is not None:
            raise AddressRefused(refusal)
        return target

    async def _check_addresses(self, target: URL) -> None:
        """Raise AddressRefused if any address that this pod's DNS returns for the host is not allowed, because the
        proxy may connect to any of them. A host that this pod cannot resolve is accepted.
        """
        with suppress(OSError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._open_resolver().require_all(str(target.raw_host), target.port or 0)

    def _open_resolver(self) -> CheckedResolver:
        if self._resolver is None:
            self._resolver = CheckedResolver(self._rules, self._make_resolver())
        return self._resolver

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=3.0, resolver=self._open_resolver(), use_dns_cache=False
            )
            # The proxies in the environment were considered already.
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._session

    def _open_proxied(self) -> aiohttp.ClientSession:
        """Return the session for requests through a proxy. The address of the proxy is not checked."""
        if self._proxied is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
            self._proxied = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._proxied


def _error_of(response: aiohttp.ClientResponse, host: str) -> RequestError:
    status = response.status
    if status < 400:
        return RequestRejected(redirect_problem(response, host), status)
    problem = Problem(reason=f"HTTP{status}", message=f"{host} responded with {_describe_status(status)}")
    return ServiceUnavailable(problem, status) if status in RETRYABLE_STATUSES else RequestRejected(problem, status)


def _describe_status(status: int) -> str:
    """Return the status with its standard phrase, because the server's own phrase is untrusted text."""
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)
