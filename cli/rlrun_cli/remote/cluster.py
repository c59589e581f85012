"""Client with which commands access the cluster."""

import builtins
import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.constants import CLI_FIELD_MANAGER, GROUP
from rlrun.kube import requests
from rlrun.kube.connection.api_proxy import api_proxy
from rlrun.kube.connection.official_client import import_lazily
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import SELF_ACCESS_REVIEW, SELF_REVIEW, ResourceKind
from rlrun.kube.objects import Labels, Obj
from rlrun.kube.sync_client import RESPONSE_SECONDS, SyncApiTransport, SyncTransport
from typing_extensions import override

from rlrun_cli.remote.logins import NO_CONTEXT, find_login
from rlrun_cli.remote.probe import ANSWER_SECONDS, SERVED_KINDS, ProbedTransport
from rlrun_cli.terminal.errors import INVALID, CliError, not_found, to_cli_error

if TYPE_CHECKING:
    from rlrun.garbage_collection.cluster_source import ClusterSource

API_KEY_VARIABLE = "RLRUN_API_KEY"
"""Environment variable with an API key, which replaces the Kubernetes token in requests to rlrun-server."""
REQUEST_TIMEOUT_SECONDS = 30.0
"""Timeout of requests that a user waits for. Garbage collection uses the client's default timeout."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoCluster(SyncTransport):
    """Transport for a machine without a kubeconfig, which reaches only rlrun-server. Every request raises CliError."""

    @override
    def send(self, request: requests.KubeRequest) -> Obj:
        raise _no_cluster(request)

    @override
    def stream(self, request: requests.KubeRequest) -> Iterator[bytes]:
        raise _no_cluster(request)


def _no_cluster(request: requests.KubeRequest) -> CliError:
    return CliError(
        f"cannot {request}: no kubeconfig was found, and an API key gives access to the platform's files only",
        "select a kubeconfig with --kubeconfig or KUBECONFIG; for `env push`, pass the URL of rlrun-server with "
        "--server or RLRUN_SERVER",
        code=INVALID,
    )


class RemoteCluster:
    """Cluster selected by a kubeconfig, or by a pod's ServiceAccount.

    Methods raise CliError unless they say otherwise.
    """

    namespace: str
    """Namespace for commands: -n, else the namespace of the kubeconfig's context or of the pod, else `default`. Without
    a cluster, only -n, else an empty string.
    """
    is_namespace_chosen: bool
    """True if the namespace comes from -n."""

    def __init__(
        self,
        open_transport: Callable[[float], SyncTransport],
        namespace: str,
        bearer: Callable[[], str] = str,
        *,
        is_namespace_chosen: bool = False,
        login_name: str = "",
    ) -> None:
        """`open_transport` returns a transport whose requests time out after the given seconds.

        `bearer` returns the user's token for the API server, or an empty string if the user has a certificate.
        `login_name` is the name under which a login to rlrun-server is saved; it is empty in a pod, which has none.
        """
        self.namespace = namespace
        self.is_namespace_chosen = is_namespace_chosen
        self.bearer = bearer
        self.login_name = login_name
        self._open_transport = open_transport
        self.transport = open_transport(REQUEST_TIMEOUT_SECONDS)
        """Transport for requests that this class has no method for. It raises ApiError."""

    @classmethod
    def connect(
        cls, kubeconfig: Path | None, context: str | None, namespace: str | None, *, has_server: bool = False
    ) -> "RemoteCluster":
        """Return the cluster of the selected context or, in a pod without a kubeconfig, the pod's. Sends no request.

        If there is an API key or `has_server` is set, the kubeconfig may be missing; requests to the cluster then fail.
        Otherwise a missing kubeconfig raises CliError. An unusable kubeconfig, or one without the context, always does.
        """
        # The official client takes long to import, and most commands of a shell session are `--help`.
        import_lazily()
        from kubernetes import client, config

        settings = client.Configuration()
        settings.retries = 1

        def open_transport(seconds: float) -> SyncTransport:
            return ProbedTransport(SyncApiTransport(client.ApiClient(settings), response_seconds=seconds), open_quick)

        def open_quick() -> SyncTransport:
            once = copy.copy(settings)
            once.retries = 0
            return SyncApiTransport(client.ApiClient(once), total_seconds=ANSWER_SECONDS)

        def bearer() -> str:
            scheme, _, token = (settings.get_api_key_with_prefix("BearerToken", alias="authorization") or "").partition(
                " "
            )
            return token.strip() if scheme.lower() == "bearer" else ""

        no_kubeconfig = (
            not kubeconfig and not os.environ.get("KUBECONFIG") and not Path("~/.kube/config").expanduser().exists()
        )
        chosen_namespace = bool(namespace)
        in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        has_key = has_server or bool(os.environ.get(API_KEY_VARIABLE) or find_login(NO_CONTEXT))
        if no_kubeconfig and has_key and not context and not (in_pod and NAMESPACE_FILE.is_file()):
            return cls(
                lambda _: NoCluster(), namespace or "", is_namespace_chosen=chosen_namespace, login_name=NO_CONTEXT
            )
        if no_kubeconfig and in_pod:
            config.load_incluster_config(settings)
            settings.proxy, settings.no_proxy = api_proxy(settings.host, None), None
            place = namespace or NAMESPACE_FILE.read_text().strip()
            return cls(open_transport, place, bearer, is_namespace_chosen=chosen_namespace)
        file = str(kubeconfig) if kubeconfig else None
        if kubeconfig and not kubeconfig.is_file():
            raise CliError(f"the kubeconfig {kubeconfig} does not exist", "correct --kubeconfig", code=INVALID)
        try:
            contexts, active = config.list_kube_config_contexts(config_file=file)
            chosen = next((c for c in contexts if c["name"] == context), None) if context else active
            if chosen is None:
                names = ", ".join(sorted(c["name"] for c in contexts)) or "none"
                raise CliError(
                    f"the kubeconfig has no context {context!r}",
                    f"select one of its contexts with --context: {names}",
                    code=INVALID,
                )
            config.load_kube_config(config_file=file, context=chosen["name"], client_configuration=settings)
            # The client ignores `proxy-url` but applies its own `no_proxy`, so the proxy is chosen here.
            merged = config.kube_config.KubeConfigMerger(file or config.KUBE_CONFIG_DEFAULT_LOCATION).config.value
            entries = {node.value["name"]: node.value.get("cluster") or {} for node in merged["clusters"]}
            proxy_url = entries.get(chosen["context"]["cluster"], {}).get("proxy-url")
            settings.proxy, settings.no_proxy = api_proxy(settings.host, proxy_url), None
        except config.ConfigException as problem:
            raise CliError(
                f"the kubeconfig cannot be used: {str(problem).rstrip('.')}",
                "select another one with --kubeconfig or KUBECONFIG",
                code=INVALID,
            ) from problem
        default_namespace = (chosen.get("context") or {}).get("namespace") or "default"
        place = namespace or default_namespace
        name = f"{chosen['name']} at {settings.host}"
        return cls(open_transport, place, bearer, is_namespace_chosen=chosen_namespace, login_name=name)

    def of_namespace(self, namespace: str) -> "RemoteCluster":
        """Return the same cluster with a different namespace."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def own_key(self) -> str:
        """Return the user's API key from API_KEY_VARIABLE, or else from `rlrun login`, or an empty string.

        A key belongs to one namespace. A login's key is not used if -n selects a different namespace.
        """
        if key := os.environ.get(API_KEY_VARIABLE, "").strip():
            return key
        login = find_login(self.login_name)
        is_other = login is not None and self.is_namespace_chosen and self.namespace != login.namespace
        return "" if login is None or is_other else login.key

    def list(
        self, kind: ResourceKind, labels: Labels | None = None, *, all_namespaces: bool = False, selector: str = ""
    ) -> builtins.list[Obj]:
        """Return all objects of a kind with these labels. `selector` adds labels in the syntax of `kubectl -l`."""
        with _cli_errors():
            place = None if all_namespaces else self.namespace
            return self.transport.list(requests.list_page(kind, place, labels, selector=selector))[0]

    def snapshot(
        self, kind: ResourceKind, *, all_namespaces: bool = False, selector: str = "", fields: str = ""
    ) -> tuple[builtins.list[Obj], str]:
        """Return the selected objects and the resource version of the collection. Raises ApiError."""
        place = None if all_namespaces else self.namespace
        return self.transport.list(requests.list_page(kind, place, selector=selector, fields=fields))

    def table(self, printed: requests.Printed) -> requests.Table:
        """Return objects as the API server prints them. Raises ApiError."""
        request = printed.first_page()
        tables = [requests.parse_table(request, page) for page in self.transport.pages(request)]
        return replace(tables[-1], rows=[row for table in tables for row in table.rows])

    def changes(self, printed: requests.Printed, version: str, seconds: float) -> Iterator[tuple[str, requests.Table]]:
        """Yield the type and the row of each change after `version`, for at most `seconds`. Raises ApiError."""
        request = printed.changes(version, seconds)
        for event, answer in self.transport.events(request):
            yield event, requests.parse_table(request, answer)

    def get(self, kind: ResourceKind, name: str, namespace: str | None = None) -> Obj:
        """Return one object. Raises NotFoundError."""
        place = namespace or self.namespace
        with _cli_errors():
            obj = self.transport.find(requests.get(kind, place, name))
        if obj is None:
            raise not_found(str(requests.get(kind, place, name)))
        return obj

    def read(self, kind: ResourceKind, name: str, namespace: str | None = None) -> Obj | None:
        """Return one object, or None if the object does not exist. Raises ApiError."""
        return self.transport.find(requests.get(kind, namespace or self.namespace, name))

    def create(self, obj: Obj) -> Obj:
        """Create an object and return it as stored by the API server. Raises ConflictError if the name is in use."""
        with _cli_errors():
            return self.transport.send(requests.create(obj, CLI_FIELD_MANAGER, self.namespace))

    def patch(self, kind: ResourceKind, name: str, changes: Obj) -> Obj:
        """Apply a JSON merge patch to an object and return the result."""
        with _cli_errors():
            return self.transport.send(requests.patch(kind, self.namespace, name, changes, CLI_FIELD_MANAGER))

    def delete(self, kind: ResourceKind, name: str, uid: str | None = None, *, missing_ok: bool = False) -> None:
        """Request deletion, which finalizers may delay. Raises NotFoundError unless `missing_ok`.

        If `uid` is given and the name now belongs to a newer object, raises CliError and deletes nothing.
        """
        request = requests.delete(kind, self.namespace, name, uid)
        with _cli_errors():
            try:
                deleted = self.transport.find(request)
            except ApiError as error:
                if uid is None or error.status != 409:
                    raise
                raise CliError(
                    f"{name} was not deleted, because it was replaced by a new object with the same name "
                    f"({error.message})",
                    "check the new object, and repeat the command to delete it",
                ) from None
        if deleted is None and not missing_ok:
            raise not_found(str(request))

    def log(
        self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool, since: int | None = None
    ) -> Iterator[str]:
        """Return the lines of a container's log. Raises NotReadyError if the container has not started."""
        request = requests.log(
            self.namespace, pod, container, previous=previous, tail_lines=tail, since_seconds=since, follow=follow
        )
        with _cli_errors():
            for line in self.transport.log(request):
                # A progress bar writes all its states on one line, separated by carriage returns.
                yield from [state for state in line.split("\r") if state] or [""]

    def served_kinds(self) -> Obj:
        """Return the APIResourceList of rlrun's API group. Raises ApiError, with status 404 if it is not installed."""
        try:
            return self.transport.send(requests.get(SERVED_KINDS, None, ""))
        except ApiError as error:
            action = f"list the kinds of {GROUP}"
            raise ApiError(error.status, error.reason, error.message, action=action, details=error.details) from error

    def may(self, verb: str, group: str, resource: str, subresource: str) -> bool:
        """Return True if the user may use this verb on the resource in the namespace. Raises ApiError."""
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        attributes = {**asked, **({"subresource": subresource} if subresource else {})}
        return bool(self._review(SELF_ACCESS_REVIEW, {"resourceAttributes": attributes}).get("allowed"))

    def user_name(self) -> str:
        """Return the user's name as admission policies see it, or an empty string if it cannot be determined."""
        try:
            found = self._review(SELF_REVIEW, {}).get("userInfo") or {}
        except ApiError:
            return ""
        return str(found.get("username") or "")

    def _review(self, kind: ResourceKind, spec: Obj) -> Obj:
        """Request an access review and return its status. The API server does not store the review."""
        review = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, **({"spec": spec} if spec else {})}
        return self.transport.send(requests.create(review, CLI_FIELD_MANAGER)).get("status") or {}

    def garbage_source(self) -> "ClusterSource":
        """Return the client with which garbage collection reads this cluster."""
        from rlrun.garbage_collection.cluster_source import ClusterSource

        return ClusterSource(self._open_transport(RESPONSE_SECONDS))


@contextmanager
def _cli_errors() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise to_cli_error(error) from None
