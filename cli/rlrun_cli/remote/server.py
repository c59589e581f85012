"""The way of users' commands to rlrun-server, which signs their requests to S3.

The server is found by --server (RLRUN_SERVER), else by the ConfigMap that the chart creates. The user's Kubernetes
token says who asks, or the API key in RLRUN_API_KEY. A kubeconfig with a client certificate has no token; one of the
ServiceAccount `rlrun-user` of the namespace takes its place.
"""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
import urllib3
from rlrun.constants import Reason
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP
from rlrun.protocol.api_keys import ACCOUNT, KEY_PATTERN
from rlrun.protocol.user_storage import LOCATION_PATH, USER_SIGN_PATH
from urllib3.exceptions import HTTPError

from rlrun_cli.remote.cluster import API_KEY_VARIABLE, RemoteCluster
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

if TYPE_CHECKING:
    from rlrun.storage.store import Store
    from rlrun.storage.user_signer import Send

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="RLRUN_SERVER",
        help="URL of rlrun-server. Default: as the platform has published it in the cluster.",
        rich_help_panel="Cluster",
    ),
]
DISCOVERY_NAMESPACE = "kube-public"
DISCOVERY_NAME = "rlrun-server"
TOKEN_SECONDS = 600
RENEW_SECONDS = 120.0
"""A token is renewed this long before it ends."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
TRIES = 4
BACKOFF = 0.5
RETRYABLE_STATUSES = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RemoteStorage:
    """The platform's files as a user may use them."""

    bucket: str
    prefix: str
    store: "Store"


def open_storage(cluster: RemoteCluster, server: str | None) -> RemoteStorage:
    """Find the server and return the storage that it opens. Raises CliError, StoreError."""
    from rlrun.storage.user_signer import open_user_store, read_location

    send = find_server(cluster, server)
    location = read_location(send)
    # A key has a namespace of its own, which need not be that of the kubeconfig.
    has_own = bool(os.environ.get(API_KEY_VARIABLE)) and not cluster.is_namespace_chosen
    namespace = "" if has_own else cluster.namespace
    return RemoteStorage(location.bucket, location.prefix, open_user_store(send, location, namespace))


def find_server(cluster: RemoteCluster, server: str | None, audience: str = "") -> "Send":
    """Return how requests reach the server. Raises CliError.

    `audience` is that of the token which takes the place of a certificate.
    """
    token = UserToken(cluster, audience)
    if server:
        return DirectServer(checked_url(server, "--server"), token).send
    try:
        found = cluster.get(CONFIG_MAP, DISCOVERY_NAME, DISCOVERY_NAMESPACE).get("data") or {}
    except NotFoundError:
        found = {}
    namespace, _, service = str(found.get("service") or "").partition("/")
    if found.get("url"):
        return DirectServer(checked_url(str(found["url"]), f"url of ConfigMap {DISCOVERY_NAME}"), token).send
    if namespace and service:
        return ProxiedServer(cluster, namespace, service, token).send
    raise CliError(
        f"rlrun-server is not known: ConfigMap {DISCOVERY_NAMESPACE}/{DISCOVERY_NAME} does not name it",
        "give its URL with --server or RLRUN_SERVER, or ask the platform team to install the chart with its server",
        code=INVALID,
    )


class DirectServer:
    """The server at its URL."""

    def __init__(self, url: str, token: Callable[[], str]) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._retries = urllib3.Retry(
            total=TRIES - 1, backoff_factor=BACKOFF, status_forcelist=RETRYABLE_STATUSES, allowed_methods=None,
            redirect=False, raise_on_status=False,
        )  # fmt: skip
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        self._http = urllib3.PoolManager(maxsize=32, timeout=timeout)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the JSON of the answer. Raises AccessDenied, StorageServerUnavailable, CliError without a token."""
        from rlrun.storage.errors import StorageServerUnavailable

        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        try:
            retries = self._retries if may_be_repeated(method, path) else False
            response = self._http.request(method, self._url + path, body=data, headers=headers, retries=retries)
        except HTTPError as error:
            raise StorageServerUnavailable(
                f"rlrun-server does not respond at {self._url} ({type(error).__name__}): check --server or RLRUN_SERVER"
            ) from error
        if response.status in (200, 201):
            try:
                return json.loads(response.data)
            except ValueError as error:
                raise StorageServerUnavailable(f"{self._url} responded with something else than JSON") from error
        raise _rejection(ApiError.from_response(response.status, response.data))


class ProxiedServer:
    """The server behind the API server, which passes requests to its Service."""

    def __init__(self, cluster: RemoteCluster, namespace: str, service: str, token: Callable[[], str]) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._service = service
        self._token = token

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the JSON of the answer. Raises AccessDenied, StorageServerUnavailable, CliError without a token."""
        from rlrun.storage.user_signer import TOKEN_HEADER

        # `Authorization` is for the API server, which removes it.
        headers = {TOKEN_HEADER: self._token()}
        content = None if body is None else dict(body)
        tries = TRIES if may_be_repeated(method, path) else 1
        for again in range(tries):
            try:
                return self._cluster.call_service(self._namespace, self._service, method, path, content, headers)
            except ApiError as error:
                if again == tries - 1 or not (error.is_unanswered or error.status in RETRYABLE_STATUSES):
                    raise self._rejection(error) from error
                time.sleep(BACKOFF * 2**again)
        raise AssertionError("unreachable")

    def _rejection(self, error: ApiError) -> Exception:
        if error.status == 403 and error.reason == "Forbidden":
            name = _service_name(self._service)
            return CliError(
                f"the API server does not let you reach rlrun-server: {error.message}",
                "give its URL with --server or RLRUN_SERVER, for example http://127.0.0.1:8080 while this runs: "
                f"kubectl port-forward -n {self._namespace} deployment/{name} 8080",
            )
        return _rejection(error)


def may_be_repeated(method: str, path: str) -> bool:
    """Return whether a request that got no answer may be sent again: it changes nothing."""
    return method == "GET" or path in (USER_SIGN_PATH, LOCATION_PATH)


class UserToken:
    """The user's API key or token: that of the kubeconfig, else one of the ServiceAccount `rlrun-user`. Thread-safe."""

    def __init__(self, cluster: RemoteCluster, audience: str = "", clock: Callable[[], float] = time.time) -> None:
        """`audience` is that of the ServiceAccount's token. Empty: the API server."""
        self._cluster = cluster
        self._audience = audience
        self._clock = clock
        self._lock = threading.Lock()
        self._made = ("", 0.0)
        """Token, and the time of its end."""

    def __call__(self) -> str:
        """Return a valid token. Raises CliError."""
        if key := os.environ.get(API_KEY_VARIABLE, "").strip():
            if not re.fullmatch(KEY_PATTERN, key):
                raise CliError(
                    f"{API_KEY_VARIABLE} has {len(key)} characters that are no API key",
                    "set it to one line as `rlrun key create` prints it, or unset it",
                    code=INVALID,
                )
            return key
        with self._lock:
            own = self._cluster.bearer()
            if own:
                return own
            token, end = self._made
            if self._clock() > end - RENEW_SECONDS:
                token, end = self._made = self._make()
            return token

    def _make(self) -> tuple[str, float]:
        try:
            status = self._cluster.create_token(ACCOUNT, TOKEN_SECONDS, self._audience)["status"]
            end = datetime.fromisoformat(str(status["expirationTimestamp"])).timestamp()
            return str(status["token"]), end
        except ApiError as error:
            raise self._without_token(error) from error

    def _without_token(self, error: ApiError) -> CliError:
        namespace = self._cluster.namespace
        account = f"--serviceaccount={namespace}:{ACCOUNT}"
        steps = [
            f"kubectl create serviceaccount {ACCOUNT} -n {namespace}",
            f"kubectl create rolebinding {ACCOUNT} --clusterrole=edit {account} -n {namespace}",
        ]
        if error.status == 403:
            name = f"{ACCOUNT}-token"
            steps = [
                f"kubectl create role {name} --verb=create --resource=serviceaccounts/token --resource-name={ACCOUNT} "
                f"-n {namespace}",
                f"kubectl create rolebinding {name} --role={name} --user=YOUR_NAME -n {namespace}",
            ]
        return CliError(
            f"your kubeconfig has a client certificate and no token, and ServiceAccount {ACCOUNT} of namespace "
            f"{namespace} gives none: {error.message}",
            "select a namespace that has this account with -n, or ask an administrator to run these commands",
            details=steps,
        )


def _rejection(error: ApiError) -> Exception:
    from rlrun.storage.errors import AccessDenied, StorageServerUnavailable

    if error.is_unanswered or error.status in RETRYABLE_STATUSES or not error.status:
        return StorageServerUnavailable(f"rlrun-server is not available: {error.message}")
    if error.status == 404 and error.reason != Reason.API_KEY_NOT_FOUND:
        return StorageServerUnavailable(
            "the server answers with 404: check the URL in --server, and the version of rlrun-server"
        )
    return AccessDenied(f"rlrun-server refuses: {error.message}")


def _service_name(proxied: str) -> str:
    """Return the name in `[scheme:]name[:port]`, as the API server's proxy writes a Service."""
    parts = proxied.split(":")
    return parts[1] if len(parts) == 3 else parts[0]


def checked_url(url: str, field: str) -> str:
    """Return the URL if it is one to which a token may be sent. Raises CliError that names the field."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise CliError(f"{field}: {url!r} is not a URL", "write https://host[:port]", code=INVALID)
    if parts.scheme == "http" and not _is_near(host):
        raise CliError(
            f"{field}: {url} would send your token over the network without TLS",
            "use https, or http for 127.0.0.1 with kubectl port-forward, or a name in the cluster (.svc)",
            code=INVALID,
        )
    return url


def _is_near(host: str) -> bool:
    """Return whether requests stay on this machine or in the cluster."""
    if host == "localhost" or host.endswith((".svc", ".svc.cluster.local")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
