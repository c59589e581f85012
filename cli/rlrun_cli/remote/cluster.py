"""The cluster as the commands see it: one namespace, and every failure as a `CliError`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.constants import CLI_FIELD_MANAGER
from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Labels, Obj
from rlrun.kube.sync_client import SyncApiTransport, SyncKubeClient

from rlrun_cli.terminal.errors import INVALID, CliError, explain, not_found

if TYPE_CHECKING:
    from rlrun.garbage_collection.cluster_source import ClusterSource


ANSWER_SECONDS = 30.0
"""Time for an answer while a user waits; a sweep of all namespaces gets the client's default."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class RemoteCluster:
    """A cluster behind a kubeconfig or, inside a pod, behind its ServiceAccount. Every method raises CliError."""

    namespace: str
    """Namespace of the commands: -n, else the kubeconfig context's namespace, else `default`."""

    def __init__(self, api_client: Any, namespace: str) -> None:
        self.namespace = namespace
        self._api_client = api_client
        self._client = SyncKubeClient(SyncApiTransport(api_client, answer_seconds=ANSWER_SECONDS), CLI_FIELD_MANAGER)

    @classmethod
    def connect(cls, kubeconfig: Path | None, context: str | None, namespace: str | None) -> "RemoteCluster":
        """Return the cluster of the chosen context; nothing is sent yet.

        Raises CliError when there is no usable kubeconfig or no such context.
        """
        # The official client takes half a second to import, and most commands of a shell session are `--help`.
        from kubernetes import client, config

        settings = client.Configuration()
        settings.retries = 1
        inside = (
            not kubeconfig and not os.environ.get("KUBECONFIG") and not Path("~/.kube/config").expanduser().exists()
        )
        if inside and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(settings)
            return cls(client.ApiClient(settings), namespace or NAMESPACE_FILE.read_text().strip())
        file = str(kubeconfig) if kubeconfig else None
        if kubeconfig and not kubeconfig.is_file():
            raise CliError(f"there is no kubeconfig at {kubeconfig}", "check --kubeconfig", code=INVALID)
        try:
            contexts, active = config.list_kube_config_contexts(config_file=file)
            chosen = next((c for c in contexts if c["name"] == context), None) if context else active
            if chosen is None:
                names = ", ".join(sorted(c["name"] for c in contexts)) or "none"
                raise CliError(f"the kubeconfig has no context {context!r}", f"contexts: {names}", code=INVALID)
            config.load_kube_config(config_file=file, context=chosen["name"], client_configuration=settings)
        except config.ConfigException as problem:
            raise CliError(
                f"no usable kubeconfig: {problem}", "give one with --kubeconfig or KUBECONFIG", code=INVALID
            ) from problem
        home = (chosen.get("context") or {}).get("namespace") or "default"
        return cls(client.ApiClient(settings), namespace or home)

    def list(self, kind: ResourceKind, labels: Labels | None = None, *, all_namespaces: bool = False) -> "list[Obj]":
        """Return all objects of a kind with these labels."""
        with _explained():
            return self._client.list(kind, None if all_namespaces else self.namespace, labels)

    def get(self, kind: ResourceKind, name: str) -> Obj:
        """Return one object. Raises NotFoundError."""
        with _explained():
            found = self._client.get(kind, self.namespace, name)
        if found is None:
            raise not_found(str(requests.get(kind, self.namespace, name)))
        return found

    def create(self, obj: Obj) -> Obj:
        """Create an object and return it as the API server stored it. Raises ConflictError when the name is taken."""
        with _explained():
            return self._client.create(obj, self.namespace)

    def patch(self, kind: ResourceKind, name: str, changes: Obj) -> Obj:
        """Change an object by a JSON merge patch and return it."""
        with _explained():
            return self._client.patch(kind, self.namespace, name, changes)

    def delete(self, kind: ResourceKind, name: str, *, missing_ok: bool = False) -> None:
        """Ask for deletion; finalizers may keep the object for a while. Raises NotFoundError unless `missing_ok`."""
        with _explained():
            deleted = self._client.delete(kind, self.namespace, name)
        if not deleted and not missing_ok:
            raise not_found(str(requests.delete(kind, self.namespace, name)))

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
        """Return the lines of a container's log. Raises NotReadyError before the container has started."""
        with _explained():
            yield from self._client.log(self.namespace, pod, container, follow=follow, tail=tail, previous=previous)

    def garbage_source(self) -> "ClusterSource":
        """Return the same cluster as garbage collection reads it."""
        from rlrun.garbage_collection.cluster_source import ClusterSource

        return ClusterSource(SyncKubeClient(SyncApiTransport(self._api_client)))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise explain(error) from None
