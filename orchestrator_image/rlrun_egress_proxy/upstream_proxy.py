"""Connections through the proxy of the platform: CONNECT (RFC 9110, section 9.3.6)."""

import asyncio
import ssl
from urllib.parse import urlsplit

from rlrun.protocol.egress import Destination

from rlrun_egress_proxy.connect_request import END_OF_HEAD

DEFAULT_PORTS = {"http": 80, "https": 443}
BUFFER = 64 * 1024
"""Bytes of an answer that may wait for the client, and of the largest head of a response."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect_through(proxy: str, destination: Destination) -> Streams:
    """Return a connection to the destination that the proxy at this URL has opened.

    Raises OSError, also if the proxy refuses it. The caller limits the time.
    """
    parts = urlsplit(proxy)
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or DEFAULT_PORTS[parts.scheme],
        limit=BUFFER,
        ssl=ssl.create_default_context() if parts.scheme == "https" else None,
    )
    try:
        target = str(destination)
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}".encode("ascii") + END_OF_HEAD)
        await writer.drain()
        head = await reader.readuntil(END_OF_HEAD)
        status = head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
        if len(status) < 2 or not status[0].startswith("HTTP/1.") or not status[1].startswith("2"):
            raise ConnectionRefusedError(f"the proxy of the platform responded with {' '.join(status)[:100]!r}")
    except BaseException as error:
        writer.close()
        if isinstance(error, asyncio.IncompleteReadError | asyncio.LimitOverrunError):
            raise ConnectionResetError("the proxy of the platform sent no complete response") from error
        raise
    return reader, writer
