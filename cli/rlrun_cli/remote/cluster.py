"""Client of one namespace for the commands. Every failure is a `CliError`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.constants import CLI_FIELD_MANAGER
from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Labels, Obj
from rlrun.kube.sync_client import RESPONSE_SECONDS, SyncApiTransport, SyncKubeClient, SyncTransport

from rlrun_cli.terminal.errors import INVALID, CliError, not_found, to_cli_error

if TYPE_CHECKING:
    from rlrun.garbage_collection.cluster_source import ClusterSource

REQUEST_TIMEOUT_SECONDS = 30.0
"""Timeout of requests that a user waits for. Garbage collection of all namespaces uses the client's default."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class RemoteCluster:
    """Cluster selected by a kubeconfig or, inside a pod, by its ServiceAccount. Every method may raise CliError."""

    namespace: str
    """Namespace of the commands: -n, else the kubeconfig context's namespace, else `default`."""

    def __init__(self, open_transport: Callable[[float], SyncTransport], namespace: str) -> None:
        """`open_transport` returns a transport whose requests time out after the given seconds."""
        self.namespace = namespace
        self._open_transport = open_transport
        self._client = SyncKubeClient(open_transport(REQUEST_TIMEOUT_SECONDS), CLI_FIELD_MANAGER)

    @classmethod
    def connect(cls, kubeconfig: Path | None, context: str | None, namespace: str | None) -> "RemoteCluster":
        """Return the cluster of the selected context without sending a request.

        Raises CliError if the kubeconfig is not usable or has no such context.
        """
        # The official client takes half a second to import, and most commands of a shell session are `--help`.
        from kubernetes import client, config

        settings = client.Configuration()
        settings.retries = 1

        def open_transport(seconds: float) -> SyncTransport:
            return SyncApiTransport(client.ApiClient(settings), response_seconds=seconds)

        no_kubeconfig = (
            not kubeconfig and not os.environ.get("KUBECONFIG") and not Path("~/.kube/config").expanduser().exists()
        )
        if no_kubeconfig and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(settings)
            return cls(open_transport, namespace or NAMESPACE_FILE.read_text().strip())
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
        except config.ConfigException as problem:
            raise CliError(
                f"the kubeconfig cannot be used: {problem}",
                "name one with --kubeconfig or KUBECONFIG",
                code=INVALID,
            ) from problem
        default_namespace = (chosen.get("context") or {}).get("namespace") or "default"
        return cls(open_transport, namespace or default_namespace)

    def list(self, kind: ResourceKind, labels: Labels | None = None, *, all_namespaces: bool = False) -> "list[Obj]":
        """Return all objects of a kind that have these labels."""
        with _cli_errors():
            return self._client.list(kind, None if all_namespaces else self.namespace, labels)

    def get(self, kind: ResourceKind, name: str) -> Obj:
        """Return one object. Raises NotFoundError."""
        with _cli_errors():
            found = self._client.get(kind, self.namespace, name)
        if found is None:
            raise not_found(str(requests.get(kind, self.namespace, name)))
        return found

    def create(self, obj: Obj) -> Obj:
        """Create an object and return it as the API server stored it. Raises ConflictError if the name exists."""
        with _cli_errors():
            return self._client.create(obj, self.namespace)

    def patch(self, kind: ResourceKind, name: str, changes: Obj) -> Obj:
        """Apply a JSON merge patch to an object and return the result."""
        with _cli_errors():
            return self._client.patch(kind, self.namespace, name, changes)

    def delete(self, kind: ResourceKind, name: str, *, missing_ok: bool = False) -> None:
        """Request deletion; finalizers may delay it. Raises NotFoundError unless `missing_ok`."""
        with _cli_errors():
            deleted = self._client.delete(kind, self.namespace, name)
        if not deleted and not missing_ok:
            raise not_found(str(requests.delete(kind, self.namespace, name)))

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
        """Return the lines of a container's log. Raises NotReadyError if the container has not started."""
        with _cli_errors():
            yield from self._client.log(self.namespace, pod, container, follow=follow, tail=tail, previous=previous)

    def garbage_source(self) -> "ClusterSource":
        """Return the source from which garbage collection reads this cluster."""
        from rlrun.garbage_collection.cluster_source import ClusterSource

        return ClusterSource(SyncKubeClient(self._open_transport(RESPONSE_SECONDS)))


@contextmanager
def _cli_errors() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise to_cli_error(error) from None
