"""Requests to the engines of serving pools.

The address of a pool depends only on the namespace and base model of an RLAdapter, never on a request. Responses
without proof that an engine of this pool sent them are discarded.
"""

import secrets
from collections.abc import AsyncIterator, Callable

import aiohttp
from rlrun.kube.references import pool_name, pool_url
from rlrun.protocol.access import bearer
from rlrun.protocol.engine_proof import NONCE_HEADER, PROOF_HEADER, is_proven, pool_server_key

from rlrun_server.inference.deployed_models import DeployedModel
from rlrun_server.inference.errors import InferenceError

CONNECT_SECONDS = 5.0
NONCE_BYTES = 16

Address = Callable[[str, str], str]
"""Function that returns the base URL of the pool for a namespace and a base model."""


class EngineAnswer:
    """Response of an engine, whose body has not been read yet."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._response.status

    @property
    def media_type(self) -> str:
        """Media type without parameters."""
        return self._response.content_type

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises aiohttp.ClientError, OSError."""
        while chunk := await self._response.content.readany():
            yield chunk

    def close(self) -> None:
        """Close the connection. If the response has not been read completely, the engine aborts the request."""
        self._response.close()


class PoolClient:
    """HTTP client of the engines of all pools."""

    def __init__(self, platform_key: Callable[[], bytes], address: Address = pool_url) -> None:
        """`platform_key` returns the key from which the operator derives pool keys, or raises ValueError or OSError."""
        self._platform_key = platform_key
        self._address = address
        self._session: aiohttp.ClientSession | None = None

    async def post(self, model: DeployedModel, path: str, body: bytes) -> EngineAnswer:
        """Send a request and return the response, which the caller must close. Raises InferenceError, and exceptions of
        `platform_key`.

        `path` is the path of a route below `/v1`.
        """
        pool = pool_name(model.base)
        key = pool_server_key(self._platform_key(), model.namespace, pool)
        nonce = secrets.token_hex(NONCE_BYTES)
        headers = {
            **bearer(key),
            NONCE_HEADER: nonce,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "rlrun-server",
        }
        url = f"{self._address(model.namespace, model.base)}{path}"
        try:
            response = await self._open_session().post(url, data=body, headers=headers, allow_redirects=False)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            message = (
                f"Serving pool {pool} in namespace {model.namespace} does not respond. Retry the request in a few "
                f"seconds. If this persists, check its state: {_advice(model)}"
            )
            raise InferenceError(503, "pool_not_ready", message) from error
        if not is_proven(key, nonce, response.headers.get(PROOF_HEADER, "")):
            response.close()
            message = (
                f"The engines of serving pool {pool} in namespace {model.namespace} do not have rlrun-server's key. "
                f"After an upgrade, the operator replaces these engines: retry the request in a few minutes. If this "
                f"persists, run: kubectl rollout restart deployment/{pool} -n {model.namespace}"
            )
            raise InferenceError(503, "pool_not_ready", message)
        return EngineAnswer(response)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Pods are replaced under the same name and address, so keep connections and DNS responses only briefly.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5, ttl_dns_cache=5)
            # No total timeout: the caller's deadline applies.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def _advice(model: DeployedModel) -> str:
    if model.adapter:
        return f"rlrun adapters get {model.adapter} -n {model.namespace}"
    return f"rlrun adapters list -n {model.namespace}"
