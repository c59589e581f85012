"""Connects users' commands to rlrun-server, which signs their requests to S3.

The server's URL comes from --server (RLRUN_SERVER), else from `rlrun login`, else from the ConfigMap that the chart
creates. The user authenticates with an API key from RLRUN_API_KEY or `rlrun login`, else with the kubeconfig's token.
For a client certificate without a token, a token for the namespace's ServiceAccount `rlrun-user` is requested.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
import urllib3
from rlrun.api.base.proxy_rules import ProxyRules
from rlrun.constants import Reason
from rlrun.kube import requests
from rlrun.kube.connection.connection_causes import cause_of
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.user_storage import LOCATION_PATH, USER_SIGN_PATH
from urllib3.exceptions import HTTPError

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.logins import find_login
from rlrun_cli.remote.probe import ANSWER_SECONDS
from rlrun_cli.remote.user_token import UserToken
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

if TYPE_CHECKING:
    from rlrun.storage.store import Store
    from rlrun.storage.user_signer import Send

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="RLRUN_SERVER",
        help="URL of rlrun-server. Default: as published in the cluster.",
        rich_help_panel="Cluster",
    ),
]
DISCOVERY_NAMESPACE = "kube-public"
DISCOVERY_NAME = "rlrun-server"
PROBE_PATH = "/rlrun/v1/whoami"
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
STREAM_SECONDS = 600.0
"""Maximum time in seconds between two chunks of a streamed response."""
STREAM_CHUNK = 8192
MAX_ERROR = 64 * 1024
FORWARDED_PORT = 8080
"""Port for plain HTTP in rlrun-server's pods, which only `kubectl port-forward` reaches."""
TRIES = 4
BACKOFF = 0.5
MISSING_REASONS = (Reason.API_KEY_NOT_FOUND, Reason.NAMESPACE_NOT_FOUND, Reason.OBJECT_NOT_FOUND)
"""Reasons in rlrun-server's 404 responses. A 404 with any other reason comes from a different server."""
RETRYABLE_STATUSES = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RemoteStorage:
    """Files in S3 that the user may access."""

    bucket: str
    prefix: str
    store: "Store"


def open_storage(cluster: RemoteCluster, server: str | None) -> RemoteStorage:
    """Find rlrun-server and return the storage that it lets the user access. Raises CliError, StoreError."""
    from rlrun.storage.user_signer import open_user_store, read_location

    send = find_server(cluster, server)
    location = read_location(send)
    # An API key has its own namespace, which may differ from the kubeconfig's.
    has_own = bool(cluster.own_key()) and not cluster.is_namespace_chosen
    namespace = "" if has_own else cluster.namespace
    return RemoteStorage(location.bucket, location.prefix, open_user_store(send, location, namespace))


def find_server(cluster: RemoteCluster, server: str | None, audience: str = "") -> "Send":
    """Return the function that sends requests to rlrun-server. Raises CliError.

    `audience` is for the token that is requested if the kubeconfig has a client certificate and no token.
    """
    return locate_server(cluster, server, audience).send


def locate_server(
    cluster: RemoteCluster, server: str | None, audience: str = "", token: Callable[[], str] | None = None
) -> "DirectServer | ProxiedServer":
    """Return the connection to rlrun-server, at its URL or through the API server. Raises CliError.

    `token` returns the credential. If it is None, the user's own credential is used.
    """
    token = token or UserToken(cluster, audience)
    if server:
        return DirectServer(checked_url(server, "--server"), token)
    if (login := find_login(cluster.login_name)) and login.server:
        return DirectServer(checked_url(login.server, "the URL of your login"), token)
    try:
        published = cluster.get(CONFIG_MAP, DISCOVERY_NAME, DISCOVERY_NAMESPACE).get("data") or {}
    except NotFoundError:
        published = {}
    namespace, _, service = str(published.get("service") or "").partition("/")
    if published.get("url"):
        return DirectServer(checked_url(str(published["url"]), f"url of ConfigMap {DISCOVERY_NAME}"), token)
    if namespace and service:
        return ProxiedServer(cluster, namespace, service, token)
    raise CliError(
        f"rlrun-server was not found; ConfigMap {DISCOVERY_NAMESPACE}/{DISCOVERY_NAME} does not specify its address",
        "pass the server's URL with --server or RLRUN_SERVER, or ask the platform team to install rlrun-server",
        code=INVALID,
    )


class DirectServer:
    """Connection to rlrun-server at its URL."""

    def __init__(self, url: str, token: Callable[[], str]) -> None:
        self.url = url.rstrip("/")
        """URL without a trailing slash."""
        self._token = token
        self._retries = urllib3.Retry(
            total=TRIES - 1, backoff_factor=BACKOFF, status_forcelist=RETRYABLE_STATUSES, allowed_methods=None,
            redirect=False, raise_on_status=False,
        )  # fmt: skip
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        proxy = ProxyRules.of_environment(os.environ).proxy_of(self.url)
        self._http = (
            urllib3.ProxyManager(proxy, maxsize=32, timeout=timeout)
            if proxy
            else urllib3.PoolManager(maxsize=32, timeout=timeout)
        )
        self._probed = Once(self._probe)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Send a request and return the JSON response. Raises CliError, StoreError."""
        from rlrun.storage.errors import StorageServerUnavailable

        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        self._probed()
        data = None if body is None else json.dumps(body)
        try:
            retries = self._retries if may_be_repeated(method, path) else False
            response = self._http.request(method, self.url + path, body=data, headers=headers, retries=retries)
        except HTTPError as error:
            raise self._silence(error) from error
        if response.status in (200, 201):
            try:
                return json.loads(response.data)
            except ValueError as error:
                raise StorageServerUnavailable(f"{self.url} did not return JSON") from error
        raise _rejection(ApiError.from_response(response.status, response.data))

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the response to a POST as it arrives. Raises CliError, StorageServerUnavailable."""

        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=STREAM_SECONDS)
        self._probed()
        try:
            response = self._http.request(
                "POST", self.url + path, body=json.dumps(body), headers=headers, retries=False, timeout=timeout,
                preload_content=False,
            )  # fmt: skip
            try:
                if response.status != 200:
                    raise _refusal(ApiError.from_response(response.status, response.read(MAX_ERROR)))
                yield from response.stream(STREAM_CHUNK)
            finally:
                response.close()
        except HTTPError as error:
            raise self._silence(error) from error

    def _probe(self) -> None:
        """Send one short request. Raises StorageServerUnavailable if it gets no response."""
        headers = {"Authorization": f"Bearer {self._token()}"}
        timeout = urllib3.Timeout(total=ANSWER_SECONDS)
        try:
            self._http.request("GET", self.url + PROBE_PATH, headers=headers, retries=False, timeout=timeout)
        except HTTPError as error:
            raise self._silence(error) from error

    def _silence(self, error: HTTPError) -> Exception:
        from rlrun.storage.errors import StorageServerUnavailable

        return StorageServerUnavailable(
            f"rlrun-server does not respond at {self.url} ({cause_of(error)}): check --server or RLRUN_SERVER"
        )


class ProxiedServer:
    """Connection to rlrun-server's Service through the Kubernetes API server."""

    def __init__(self, cluster: RemoteCluster, namespace: str, service: str, token: Callable[[], str]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._service = service
        self._token = token
        self._probed = Once(self._probe)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Send a request and return the JSON response. Raises CliError, StoreError."""
        self._probed()
        content = None if body is None else dict(body)
        tries = TRIES if may_be_repeated(method, path) else 1
        for again in range(tries):
            try:
                return self._cluster.transport.send(self._request(method, path, content))
            except ApiError as error:
                if again == tries - 1 or not (error.is_unanswered or error.status in RETRYABLE_STATUSES):
                    raise self._rejection(error) from error
                time.sleep(BACKOFF * 2**again)
        raise AssertionError("unreachable")

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the response to a POST as it arrives. Raises CliError, StorageServerUnavailable."""
        self._probed()
        try:
            yield from self._cluster.transport.stream(self._request("POST", path, dict(body), STREAM_SECONDS))
        except ApiError as error:
            is_answer = error.status and not (error.status == 403 and error.reason == "Forbidden")
            raise _refusal(error) if is_answer else self._rejection(error) from error

    def _probe(self) -> None:
        """Send one short request. Raises StorageServerUnavailable if it gets no response."""
        try:
            self._cluster.transport.send(self._request("GET", PROBE_PATH, None, ANSWER_SECONDS))
        except ApiError as error:
            if error.is_unanswered:
                raise self._rejection(error) from error

    def _request(self, method: str, path: str, body: Obj | None, seconds: float | None = None) -> KubeRequest:
        from rlrun.storage.user_signer import TOKEN_HEADER

        # The API server uses and removes the `Authorization` header.
        headers = {TOKEN_HEADER: self._token()}
        return requests.call_service(self._namespace, self._service, method, path, body, headers, seconds)

    def port_forward(self) -> str:
        """Return the command that makes the server reachable from this machine."""
        return f"kubectl port-forward -n {self._namespace} deployment/{_service_name(self._service)} {FORWARDED_PORT}"

    def _rejection(self, error: ApiError) -> Exception:
        if error.status == 403 and error.reason == "Forbidden":
            return CliError(
                f"the API server does not let you reach rlrun-server through it: {error.message}",
                f"pass its URL with --server or RLRUN_SERVER, for example http://127.0.0.1:{FORWARDED_PORT} while this "
                f"command runs: {self.port_forward()}",
            )
        return _rejection(error)


class Once:
    """Calls a function on each use until it has succeeded once. Thread-safe."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._is_done = False

    def __call__(self) -> None:
        """Call the function unless it has succeeded before. Propagates its exceptions."""
        with self._lock:
            if not self._is_done:
                self._call()
                self._is_done = True


def may_be_repeated(method: str, path: str) -> bool:
    """Return True if a request that got no response may be repeated, because such requests change nothing."""
    return method == "GET" or path in (USER_SIGN_PATH, LOCATION_PATH)


def _rejection(error: ApiError) -> Exception:
    from rlrun.storage.errors import AccessDenied, NotFound, StorageServerUnavailable, StoreError

    if error.is_unanswered or error.status in RETRYABLE_STATUSES or not error.status:
        return StorageServerUnavailable(f"rlrun-server is not available: {error.message}")
    if error.status == 401:
        return CliError(
            f"rlrun-server does not accept your credential: {error.message}",
            "log in to the cluster again, or use another API key (rlrun login)",
        )
    if error.status == 404 and error.reason not in MISSING_REASONS:
        return StorageServerUnavailable(
            "the server returned 404; check --server or RLRUN_SERVER, and the version of rlrun-server"
        )
    if error.reason == Reason.API_KEY_NOT_FOUND:
        return NotFound(error.message)
    # A namespace without the user's rights looks like one that does not exist.
    is_right_missing = error.status == 403 or error.reason == Reason.NAMESPACE_NOT_FOUND
    kind = AccessDenied if is_right_missing else StoreError
    return kind(f"rlrun-server refused the request: {error.message}")


def _refusal(error: ApiError) -> CliError:
    """Return the error for a response whose message already says what to do."""
    return CliError(f"rlrun-server refused the request ({error.status}): {error.message}")


def _service_name(proxied: str) -> str:
    """Return the name from `[scheme:]name[:port]`, the API server's notation for a proxied Service."""
    parts = proxied.split(":")
    return parts[1] if len(parts) == 3 else parts[0]


def checked_url(url: str, field: str) -> str:
    """Return the URL if a token can be sent to it safely, otherwise raise a CliError that names `field`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise CliError(f"{field}: {url!r} is not a URL", "write https://host[:port]", code=INVALID)
    if parts.scheme == "http" and not _is_near(host):
        raise CliError(
            f"{field}: {url} would send your token over the network without TLS",
            "use https; http is allowed only for localhost (kubectl port-forward) and cluster-internal names (.svc)",
            code=INVALID,
        )
    return url


def _is_near(host: str) -> bool:
    """Return True if requests to the host stay on this machine or in the cluster."""
    if host == "localhost" or host.endswith((".svc", ".svc.cluster.local")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
