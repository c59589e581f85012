"""Connections to the processes of pools."""

import aiohttp

KEEPALIVE_SECONDS = 5
"""Seconds for which idle connections and DNS results are kept. Few, because new pods may reuse names and addresses."""


class PoolConnections:
    """HTTP session that is created when it is first used."""

    def __init__(self, limit: int = 0) -> None:
        """`limit` is the maximum number of connections, for which further requests wait. 0 disables the limit."""
        self._limit = limit
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """Return the session for requests. Must be called on the event loop."""
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._limit, keepalive_timeout=KEEPALIVE_SECONDS, ttl_dns_cache=KEEPALIVE_SECONDS
            )
            # A compressed response could expand to a thousand times its size.
            self._session = aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity", "User-Agent": "rlrun-tinker"},
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
