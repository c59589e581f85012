"""Proxy with one tunnel per connection, to hosts listed in the client's signed grant.

The proxy resolves a name once and connects to the address that it has checked. A name therefore cannot lead to a
private address, even if its DNS record changes after the check. Only TLS for the requested host passes. If
connections go through the platform's proxy, the name is checked in the same way if it can be resolved here, but the
platform's proxy resolves it again.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from ipaddress import ip_address

from rlrun.constants import Reason
from rlrun.protocol.egress import Destination, EgressGrant, GrantError, verify

from rlrun_egress_proxy.client_hello import (
    MAX_BYTES,
    RECORD_HEADER,
    IncompleteError,
    NotTlsError,
    record_length,
    server_name,
)
from rlrun_egress_proxy.connect_request import (
    END_OF_HEAD,
    MAX_HEAD_BYTES,
    ConnectRequest,
    EgressRefused,
    missing_credentials,
    parse_request,
)
from rlrun_egress_proxy.metrics import BYTES, MAX_TUNNELS, OPEN_TUNNELS, REFUSALS, TUNNELS
from rlrun_egress_proxy.name_lookups import NameLookups, Resolve, ThreadResolver
from rlrun_egress_proxy.settings import EgressConfig
from rlrun_egress_proxy.tunnel_limits import TunnelLimits
from rlrun_egress_proxy.upstream_proxy import connect_through

log = logging.getLogger(__name__)

CHUNK = 64 * 1024
ESTABLISHED = b"HTTP/1.1 200 Connection established" + END_OF_HEAD

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class _Activity:
    """Time of the last byte of a tunnel in either direction, and the total number of bytes."""

    last: float
    count: int = 0

    def add(self, count: int) -> None:
        self.last = time.monotonic()
        self.count += count


class EgressProxy:
    """Handler of client connections."""

    def __init__(self, config: EgressConfig, resolve: Resolve | None = None) -> None:
        """`resolve` looks up names. If it is None, the C library is used."""
        self._config = config
        self._settings = config.settings
        self._limits = TunnelLimits(config.settings.tunnels_per_run, config.settings.connections)
        self.connections = 0
        """Number of open client connections, including those whose request has not arrived."""
        self._strangers: dict[asyncio.StreamWriter, str] = {}
        """Connections whose client has not presented a grant, oldest first, with the client's address."""
        self._lookups = NameLookups(resolve or ThreadResolver())
        OPEN_TUNNELS.set_function(lambda: self._limits.open)
        MAX_TUNNELS.set(config.settings.connections)

    @property
    def open_tunnels(self) -> int:
        """Number of open tunnels."""
        return self._limits.open

    async def serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until its tunnel closes. Raises CancelledError, or ValueError if the signing keys are
        unusable.
        """
        self.connections += 1
        try:
            self._admit(writer)
            await self._tunnel((reader, writer))
        except EgressRefused as error:
            REFUSALS.labels(error.reason).inc()
            with contextlib.suppress(OSError):
                writer.write(error.response())
                await asyncio.wait_for(writer.drain(), self._settings.head_deadline)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            log.debug("A client disconnected: %s", error)
        finally:
            self.connections -= 1
            self._strangers.pop(writer, None)
            writer.close()

    def _admit(self, writer: asyncio.StreamWriter) -> None:
        """Count a connection as one without a grant. If the limit is exceeded, close the oldest such connection of the
        client address with the most such connections.

        Raises EgressRefused if no connection can be closed.
        """
        if self.connections > self._settings.connections:
            if not self._strangers:
                raise EgressRefused(
                    HTTPStatus.SERVICE_UNAVAILABLE, Reason.TOO_MANY_REQUESTS, "The proxy is busy. Try again later."
                )
            ((largest, _),) = Counter(self._strangers.values()).most_common(1)
            oldest = next(other for other, address in self._strangers.items() if address == largest)
            REFUSALS.labels(Reason.TOO_MANY_REQUESTS).inc()
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = str((writer.get_extra_info("peername") or [""])[0])

    async def _tunnel(self, client: Streams) -> None:
        request = await self._read_request(client[0])
        grant = self._verify_grant(request)
        with self._limits.tunnel(grant):
            self._strangers.pop(client[1], None)
            upstream = await self._connect(grant, request.destination)
            try:
                client[1].write(ESTABLISHED)
                hello = await self._read_hello(client, request.destination)
                upstream[1].write(hello)
                count = await self._relay(client, upstream, len(hello))
            finally:
                upstream[1].close()
        label = grant.namespace if self._settings.metrics_with_tenants else ""
        TUNNELS.labels(label).inc()
        BYTES.labels(label).inc(count)
        who = f"{grant.namespace}/{grant.run} {grant.environment}"
        log.info("%s: %s, %d bytes", who, request.destination, count)

    async def _read_request(self, reader: asyncio.StreamReader) -> ConnectRequest:
        try:
            head = await asyncio.wait_for(reader.readuntil(END_OF_HEAD), self._settings.head_deadline)
        except asyncio.LimitOverrunError as error:
            raise EgressRefused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                Reason.INVALID_REQUEST,
                f"The request head is larger than {MAX_HEAD_BYTES} bytes. Send no headers except the credentials.",
            ) from error
        return parse_request(head)

    def _verify_grant(self, request: ConnectRequest) -> EgressGrant:
        try:
            grant = verify(request.grant, self._config.keys(), datetime.now(UTC))
        except GrantError as error:
            message = str(error)
            raise missing_credentials(f"{message[0].upper()}{message[1:]}") from error
        if not grant.allows(request.destination):
            listed = ", ".join(grant.hosts)
            log.info("%s/%s %s: refused %s", grant.namespace, grant.run, grant.environment, request.destination)
            raise _not_allowed(
                f"{request.destination} is not listed in `egress` of this environment ({listed}). Add it there if the "
                "platform allows this destination."
            )
        return grant

    async def _connect(self, grant: EgressGrant, destination: Destination) -> Streams:
        """Connect to the first allowed address that responds, or through the platform's proxy."""
        host, port = destination
        deadline = self._settings.connect_deadline
        upstream = self._config.proxies.proxy_of(f"https://{destination}")
        try:
            addresses = await self._lookups.find(grant, host, port, deadline)
        except (OSError, UnicodeError, TimeoutError) as error:
            if upstream is None:
                raise _unreachable(destination, "the name could not be resolved") from error
            addresses = []
        refusals = [self._config.rules.address_refusal(host, ip_address(a.partition("%")[0])) for a in addresses]
        if upstream is not None:
            return await self._connect_through(upstream, destination, refusals)
        allowed = [a for a, refusal in zip(addresses, refusals, strict=True) if refusal is None]
        if not allowed:
            raise _not_allowed(next(filter(None, refusals), f"{host} has no address") + ".")
        failure: Exception | None = None
        for address in allowed:
            try:
                return await asyncio.wait_for(asyncio.open_connection(address, port, limit=CHUNK), deadline)
            except (OSError, TimeoutError) as error:
                failure = error
        raise _unreachable(destination, "it does not respond") from failure

    async def _connect_through(
        self, upstream: str, destination: Destination, refusals: Sequence[str | None]
    ) -> Streams:
        """Connect through the platform's proxy, which resolves the name and chooses among its addresses itself.

        A name that cannot be resolved here is checked as text only.
        """
        why = next(filter(None, refusals), None)
        if not refusals:
            why = self._config.rules.host_refusal("https", destination.host)
        if why:
            raise _not_allowed(f"{why}.")
        try:
            return await asyncio.wait_for(connect_through(upstream, destination), self._settings.connect_deadline)
        except (OSError, TimeoutError) as error:
            log.warning("could not reach %s through the platform's proxy: %s", destination, error)
            raise _unreachable(destination, "the platform's proxy did not open the connection") from error

    async def _read_hello(self, client: Streams, destination: Destination) -> bytes:
        """Return the client's first bytes. Raises ConnectionError if they are not TLS for the destination."""
        try:
            async with asyncio.timeout(self._settings.head_deadline):
                data, name = await _read_client_hello(client[0])
        except NotTlsError as error:
            REFUSALS.labels(Reason.EGRESS_NOT_ALLOWED).inc()
            raise ConnectionError(f"{destination}: {error}") from error
        if name != destination.host:
            REFUSALS.labels(Reason.EGRESS_NOT_ALLOWED).inc()
            raise ConnectionError(f"{destination}: the TLS connection is for a different server")
        return data

    async def _relay(self, client: Streams, upstream: Streams, count: int) -> int:
        """Copy bytes in both directions until both sides close or the idle time is exceeded. Returns the number of
        bytes.
        """
        activity = _Activity(time.monotonic(), count)
        copies = {
            asyncio.create_task(_copy(client[0], upstream[1], activity)),
            asyncio.create_task(_copy(upstream[0], client[1], activity)),
        }
        watch = asyncio.create_task(_idle(activity, self._settings.idle_deadline))
        try:
            pending = {*copies, watch}
            while copies & pending and watch in pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*copies, watch):
                task.cancel()
            await asyncio.gather(*copies, watch, return_exceptions=True)
        return activity.count


async def _read_client_hello(reader: asyncio.StreamReader) -> tuple[bytes, str | None]:
    """Return the records of a ClientHello and its server name. Raises NotTlsError, IncompleteReadError."""
    data = b""
    while len(data) <= MAX_BYTES:
        header = await reader.readexactly(RECORD_HEADER)
        data += header + await reader.readexactly(record_length(header))
        with contextlib.suppress(IncompleteError):
            return data, server_name(data)
    raise NotTlsError(f"the ClientHello has more than {MAX_BYTES} bytes")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, activity: _Activity) -> None:
    """Copy until the reader ends, then signal the end to the writer. The other direction may continue."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK):
            activity.add(len(chunk))
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:
            # A TLS connection to the platform's proxy cannot close only one direction.
            writer.close()


async def _idle(activity: _Activity, seconds: float) -> None:
    """Return once no byte has arrived for `seconds`."""
    # An event per chunk would cost more than periodic polling.
    while (left := activity.last + seconds - time.monotonic()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(left)


def _not_allowed(message: str) -> EgressRefused:
    return EgressRefused(HTTPStatus.FORBIDDEN, Reason.EGRESS_NOT_ALLOWED, message)


def _unreachable(destination: Destination, why: str) -> EgressRefused:
    message = f"Could not reach {destination}: {why}."
    return EgressRefused(HTTPStatus.BAD_GATEWAY, Reason.UNREACHABLE, message)
