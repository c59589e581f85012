"""Connections through the platform's proxy: CONNECT (RFC 9110, section 9.3.6)."""

import asyncio
import ssl
from urllib.parse import urlsplit

from rlrun.protocol.egress import Destination

from rlrun_egress_proxy.connect_request import END_OF_HEAD

DEFAULT_PORTS = {"http": 80, "https": 443}
BUFFER = 64 * 1024
"""Maximum number of buffered response bytes for a client, and maximum size of a response head."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect_through(proxy: str, destination: Destination) -> Streams:
    """Open a connection to the destination through the proxy at this URL.

    Raises OSError, for example if the proxy refuses the connection. The caller must set a timeout.
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
            raise ConnectionRefusedError(f"the platform's proxy responded with {' '.join(status)[:100]!r}")
    except BaseException as error:
        writer.close()
        if isinstance(error, asyncio.IncompleteReadError | asyncio.LimitOverrunError):
            raise ConnectionResetError("the platform's proxy sent an incomplete response") from error
        raise
    return reader, writer
