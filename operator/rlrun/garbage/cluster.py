"""The cluster's side of garbage, through the official client: which runs, artifacts and children there are.

The list of runs and of artifacts is all or nothing: a page that is missing, or an answer that is no whole list, is an
error, because every run that is not in the list would look as if it were gone. Children are another matter: a kind that
may not be listed is left alone, and said so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from rlrun.garbage.plan import Garbage
from rlrun.garbage.world import Artifact, Child, Run
from rlrun.schema.run_status import Phase

GROUP, VERSION = "rlrun.dev", "v1alpha1"
RUN_UID_LABEL = "rlrun.dev/run-uid"
MANAGER_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "rlrun-operator"
TIMEOUT = (5, 60)
"""Seconds to connect, seconds to answer."""
PAGE = 500
PLURALS = {"RLCheckpoint": "rlcheckpoints", "RLAdapter": "rladapters"}
CHILD_APIS = {
    "Job": ("batch/v1", "jobs"),
    "Deployment": ("apps/v1", "deployments"),
    "Service": ("v1", "services"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "ConfigMap": ("v1", "configmaps"),
    "Secret": ("v1", "secrets"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}
"""Kinds of children by API and plural; what writes goes first."""

FINISHED = frozenset(p.value for p in Phase if p.finished)

Object = dict[str, Any]


class ClusterError(Exception):
    """The cluster did not say what there is, or did not remove what it was told to; the text is for people."""


class Cluster(Protocol):
    """What garbage needs of a cluster. `namespace` None means all. Every method raises ClusterError."""

    def runs(self, namespace: str | None) -> list[Run]:
        """Every run; complete, or an error."""
        ...

    def artifacts(self, namespace: str | None) -> list[Artifact]:
        """Every RLCheckpoint and RLAdapter; complete, or an error."""
        ...

    def children(self, namespace: str | None) -> tuple[list[Child], list[str]]:
        """Children of runs, and what could not be looked at."""
        ...

    def delete(self, item: Garbage) -> None:
        """Removes an object; one that is gone already is no error."""
        ...


class KubeCluster:
    """A `Cluster` behind a kubernetes ApiClient."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def runs(self, namespace: str | None) -> list[Run]:
        """See `Cluster`."""
        return [run(item) for item in self._list(f"{GROUP}/{VERSION}", "rlruns", namespace)]

    def artifacts(self, namespace: str | None) -> list[Artifact]:
        """See `Cluster`."""
        return [
            artifact(kind, item)
            for kind, plural in PLURALS.items()
            for item in self._list(f"{GROUP}/{VERSION}", plural, namespace)
        ]

    def children(self, namespace: str | None) -> tuple[list[Child], list[str]]:
        """See `Cluster`."""
        found, notes = [], []
        selector = f"{RUN_UID_LABEL},{MANAGER_LABEL}={MANAGER}"
        for kind, (api, plural) in CHILD_APIS.items():
            try:
                items = self._list(api, plural, namespace, selector)
            except ClusterError as problem:
                notes.append(f"{plural} were not looked at: {problem}")
                continue
            found += [child(kind, item) for item in items if is_of_a_run(item)]
        return found, notes

    def delete(self, item: Garbage) -> None:
        """See `Cluster`."""
        from kubernetes.client.exceptions import ApiException

        if item.kind in PLURALS:
            api, plural = f"{GROUP}/{VERSION}", PLURALS[item.kind]
        else:
            api, plural = CHILD_APIS[item.kind]
        with _asked(f"delete {item.kind} {item.namespace}/{item.name}"):
            try:
                # In the background, or the pods of a Job would be left without an owner.
                body = {"propagationPolicy": "Background"}
                self._call("DELETE", f"{_path(api, plural, item.namespace)}/{item.name}", body=body)
            except ApiException as answer:
                if answer.status != 404:
                    raise

    def _list(self, api: str, plural: str, namespace: str | None, selector: str = "") -> list[Object]:
        found: list[Object] = []
        token = ""
        with _asked(f"list {plural}" + (f" in namespace {namespace}" if namespace else "")):
            while True:
                query = [("limit", str(PAGE))]
                query += [("labelSelector", selector)] if selector else []
                query += [("continue", token)] if token else []
                answer = self._call("GET", _path(api, plural, namespace), query=query)
                if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
                    raise ClusterError(f"the list of {plural} is not a list: nothing is removed")
                found += answer["items"]
                token = str((answer.get("metadata") or {}).get("continue") or "")
                if not token:
                    return found

    def _call(self, verb: str, path: str, *, query: list[tuple[str, str]] | None = None, body: Any = None) -> Any:
        return self._client.call_api(
            path,
            verb,
            {},
            query or [],
            {"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            response_types_map={200: "object", 202: "object"},
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _request_timeout=TIMEOUT,
        )


def run(item: Object) -> Run:
    """A run by its object."""
    finished = (item.get("status") or {}).get("phase") in FINISHED
    starts_from = str((item.get("spec") or {}).get("checkpointId") or "").rpartition("/")[2]
    return Run(str(item["metadata"]["uid"]), finished, starts_from)


def artifact(kind: str, item: Object) -> Artifact:
    """The artifact that an RLCheckpoint or RLAdapter is about."""
    meta, spec = item["metadata"], item["spec"]
    return Artifact(
        kind,
        str(meta["namespace"]),
        str(meta["name"]),
        str(spec["runUid"]),
        str(spec["uri"]),
        _time(meta),
        bool(spec.get("deployed")),
    )


def child(kind: str, item: Object) -> Child:
    """A child by its metadata."""
    meta = item["metadata"]
    return Child(kind, str(meta["namespace"]), str(meta["name"]), str(meta["labels"][RUN_UID_LABEL]), _time(meta))


def is_of_a_run(item: Object) -> bool:
    """Whether a run owns the object, or nobody does: what belongs to something else is not a run's leftover."""
    owners = item["metadata"].get("ownerReferences") or []
    return all(o.get("kind") == "RLRun" for o in owners)


def _time(metadata: Object) -> datetime:
    text = metadata.get("creationTimestamp")
    # Without a time it counts as new: what nobody knows the age of is not removed.
    return datetime.fromisoformat(str(text)) if text else datetime.max.replace(tzinfo=UTC)


def _path(api: str, plural: str, namespace: str | None) -> str:
    base = f"/api/{api}" if "/" not in api else f"/apis/{api}"
    return f"{base}/namespaces/{namespace}/{plural}" if namespace else f"{base}/{plural}"


@contextmanager
def _asked(what: str) -> Iterator[None]:
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as answer:
        raise ClusterError(f"cannot {what}: the API server answers {answer.status} {answer.reason}") from None
    except (HTTPError, OSError) as problem:
        raise ClusterError(f"cannot {what}: the API server does not answer ({type(problem).__name__})") from None
