"""The only door to a cluster: what the commands need of the Kubernetes API, and no more.

`Cluster` is the rim that tests replace. `KubeCluster` speaks through the official client; its import costs half a
second and is therefore left until a command really needs a cluster.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlrun.cli.errors import INVALID, CliError, UnreachableError, explain

if TYPE_CHECKING:
    from rlrun.garbage.cluster import Cluster as GarbageCluster

GROUP = "rlrun.dev"
VERSION = "v1alpha1"
TIMEOUT = (5, 30)
"""Seconds to connect, seconds to answer."""
MERGE_PATCH = "application/merge-patch+json"

Object = dict[str, Any]
"""A Kubernetes object as the API server sends it."""


@dataclass(frozen=True)
class Kind:
    """A kind of the operator's group."""

    name: str
    plural: str
    namespaced: bool = True


RUN = Kind("RLRun", "rlruns")
CHECKPOINT = Kind("RLCheckpoint", "rlcheckpoints")
ADAPTER = Kind("RLAdapter", "rladapters")
MODEL = Kind("RLModel", "rlmodels", namespaced=False)


class Cluster(Protocol):
    """What a command may ask of a cluster. Every method raises CliError with a sentence for people."""

    namespace: str
    """Where commands work: -n, else the kubeconfig context's namespace, else `default`."""

    def objects(self, kind: Kind, *, all_namespaces: bool = False) -> list[Object]:
        """All objects of a kind."""
        ...

    def get(self, kind: Kind, name: str) -> Object:
        """One object. Raises NotFoundError."""
        ...

    def create(self, kind: Kind, body: Object) -> Object:
        """The object as the API server stored it. Raises ConflictError when the name is taken."""
        ...

    def patch(self, kind: Kind, name: str, patch: Object) -> Object:
        """The object after a JSON merge patch."""
        ...

    def delete(self, kind: Kind, name: str) -> None:
        """Ask for deletion; finalizers may keep the object for a while."""
        ...

    def create_secret(self, body: Object) -> None:
        """Create a Secret."""
        ...

    def patch_secret(self, name: str, patch: Object) -> None:
        """Change a Secret by a JSON merge patch."""
        ...

    def delete_secret(self, name: str) -> None:
        """Delete a Secret; one that is gone already is no error."""
        ...

    def pods(self, selector: str) -> list[Object]:
        """Pods of the namespace, by label selector."""
        ...

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
        """Lines of a container's log. Raises NotReadyError before the container has started."""
        ...

    def garbage(self) -> "GarbageCluster":
        """The same cluster as `rlrun gc` needs it."""
        ...


class KubeCluster:
    """A `Cluster` behind a kubeconfig (or, inside a pod, behind its ServiceAccount)."""

    def __init__(self, client: Any, namespace: str, where: str):
        from kubernetes import client as api

        self.namespace = namespace
        self._where = where
        self._client = client
        self._custom = api.CustomObjectsApi(client)
        self._core = api.CoreV1Api(client)

    @classmethod
    def connect(cls, kubeconfig: Path | None, context: str | None, namespace: str | None) -> "KubeCluster":
        """A client for the chosen context; nothing is sent yet.

        Raises CliError when there is no usable kubeconfig or no such context.
        """
        from kubernetes import client as api
        from kubernetes import config

        settings = api.Configuration()
        settings.retries = 1
        inside = (
            not kubeconfig and not os.environ.get("KUBECONFIG") and not Path("~/.kube/config").expanduser().exists()
        )
        if inside and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(settings)
            home = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
            return cls(api.ApiClient(settings), namespace or home, str(settings.host))
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
        return cls(api.ApiClient(settings), namespace or home, str(settings.host))

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as answer:
            if answer.status:
                raise explain(answer.status, answer.body, what) from None
            raise CliError(f"cannot {what}: {answer.reason}") from None
        except (HTTPError, OSError) as problem:
            raise UnreachableError(
                f"cannot {what}: the API server at {self._where} does not answer ({type(problem).__name__})",
                "check that the cluster is up and that --kubeconfig/--context name the right one",
            ) from None

    def _place(self, kind: Kind, name: str | None = None) -> str:
        return "/".join(p for p in (self.namespace if kind.namespaced else None, name) if p)

    def _args(self, kind: Kind) -> dict[str, Any]:
        place = {"namespace": self.namespace} if kind.namespaced else {}
        return {"group": GROUP, "version": VERSION, "plural": kind.plural, "_request_timeout": TIMEOUT, **place}

    def _call(self, verb: str, kind: Kind) -> Any:
        return getattr(self._custom, f"{verb}_{'namespaced' if kind.namespaced else 'cluster'}_custom_object")

    def objects(self, kind: Kind, *, all_namespaces: bool = False) -> list[Object]:
        """See `Cluster`."""
        with self._asked(f"list {kind.plural}" + ("" if all_namespaces else f" in namespace {self.namespace}")):
            if all_namespaces or not kind.namespaced:
                answer = self._custom.list_cluster_custom_object(GROUP, VERSION, kind.plural, _request_timeout=TIMEOUT)
            else:
                answer = self._custom.list_namespaced_custom_object(**self._args(kind))
        items: list[Object] = answer["items"]
        return items

    def get(self, kind: Kind, name: str) -> Object:
        """See `Cluster`."""
        with self._asked(f"get {kind.name} {self._place(kind, name)}"):
            found: Object = self._call("get", kind)(name=name, **self._args(kind))
        return found

    def create(self, kind: Kind, body: Object) -> Object:
        """See `Cluster`."""
        shown = body["metadata"].get("name") or f"{body['metadata'].get('generateName', '')}*"
        with self._asked(f"create {kind.name} {self._place(kind, shown)}"):
            made: Object = self._call("create", kind)(body=body, field_manager="rlrun-cli", **self._args(kind))
        return made

    def patch(self, kind: Kind, name: str, patch: Object) -> Object:
        """See `Cluster`."""
        with self._asked(f"change {kind.name} {self._place(kind, name)}"):
            patched: Object = self._call("patch", kind)(
                name=name, body=patch, _content_type=MERGE_PATCH, field_manager="rlrun-cli", **self._args(kind)
            )
        return patched

    def delete(self, kind: Kind, name: str) -> None:
        """See `Cluster`."""
        with self._asked(f"delete {kind.name} {self._place(kind, name)}"):
            self._call("delete", kind)(name=name, **self._args(kind))

    def create_secret(self, body: Object) -> None:
        """See `Cluster`."""
        with self._asked(f"create Secret {self.namespace}/{body['metadata']['name']}"):
            self._core.create_namespaced_secret(self.namespace, body, _request_timeout=TIMEOUT)

    def patch_secret(self, name: str, patch: Object) -> None:
        """See `Cluster`."""
        with self._asked(f"change Secret {self.namespace}/{name}"):
            self._core.patch_namespaced_secret(
                name, self.namespace, patch, _content_type=MERGE_PATCH, _request_timeout=TIMEOUT
            )

    def delete_secret(self, name: str) -> None:
        """See `Cluster`."""
        from kubernetes.client.exceptions import ApiException

        with self._asked(f"delete Secret {self.namespace}/{name}"):
            try:
                self._core.delete_namespaced_secret(name, self.namespace, _request_timeout=TIMEOUT)
            except ApiException as answer:
                if answer.status != 404:
                    raise

    def pods(self, selector: str) -> list[Object]:
        """See `Cluster`."""
        with self._asked(f"list pods in namespace {self.namespace}"):
            answer = self._core.list_namespaced_pod(self.namespace, label_selector=selector, _request_timeout=TIMEOUT)
        items: list[Object] = self._client.sanitize_for_serialization(answer)["items"]
        return items

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
        """See `Cluster`."""
        what = f"read the log of {self.namespace}/{pod} ({container})"
        with self._asked(what):
            stream = self._core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=container,
                follow=follow,
                previous=previous,
                _preload_content=False,
                _request_timeout=(TIMEOUT[0], None if follow else TIMEOUT[1]),
                **({"tail_lines": tail} if tail is not None else {}),
            )
        return self._lines(stream, what)

    def garbage(self) -> "GarbageCluster":
        """See `Cluster`."""
        from rlrun.garbage.cluster import KubeCluster as Swept

        return Swept(self._client)

    def _lines(self, stream: Any, what: str) -> Iterator[str]:
        rest = b""
        with self._asked(what):
            try:
                for chunk in stream.stream(8192, decode_content=True):
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line.decode("utf-8", "replace")
            finally:
                stream.close()
        if rest:
            yield rest.decode("utf-8", "replace")
