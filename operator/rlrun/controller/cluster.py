"""The few calls on the Kubernetes API that the operator makes, for every kind the same, on plain dicts.

Over `kubernetes.aio`'s ApiClient rather than its typed APIs: those parse every answer into thousands of attributes that
nobody reads, and have no server-side apply for arbitrary kinds. Each request has a deadline of its own.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from kubernetes.aio import client, config

from rlrun.resources.naming import API_VERSION, FIELD_MANAGER

Obj = dict[str, Any]
Labels = Mapping[str, str]

REQUEST_SECONDS = 20.0
LOG_LINES = 200_000
"""The API server counts a log's bytes from its beginning, so its end is asked for in lines."""
LIST_CHUNK = 500


@dataclass(frozen=True)
class Kind:
    """One kind of object and where the API server keeps it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL's path of the object, or of the collection without a name."""
        parts = ["/apis" if "/" in self.api_version else "/api", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [p for p in (self.plural, name, subresource) if p]
        return "/".join(parts)


RLRUN = Kind(API_VERSION, "RLRun", "rlruns")
RLMODEL = Kind(API_VERSION, "RLModel", "rlmodels", namespaced=False)
RLCHECKPOINT = Kind(API_VERSION, "RLCheckpoint", "rlcheckpoints")
RLADAPTER = Kind(API_VERSION, "RLAdapter", "rladapters")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
JOB = Kind("batch/v1", "Job", "jobs")
SERVICE = Kind("v1", "Service", "services")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD = Kind("v1", "Pod", "pods")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")

KINDS: dict[str, Kind] = {
    k.kind: k
    for k in (
        RLRUN, RLMODEL, RLCHECKPOINT, RLADAPTER, DEPLOYMENT, JOB, SERVICE, NETWORK_POLICY, POD, CONFIG_MAP, SECRET,
        SERVICE_ACCOUNT, EVENT, LEASE,
    )
}  # fmt: skip


class ApiError(Exception):
    """The API server said no. `status` is HTTP's, `reason` Kubernetes' (NotFound, Conflict, Invalid, ...)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Cluster(Protocol):
    """What the operator asks of a cluster. `get` answers None for what is not there; deleting it again is no error."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """The object, or None."""

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Obj]:
        """All objects with these labels, from the API server itself (no cache); all namespaces without a namespace."""

    async def create(self, obj: Obj) -> Obj:
        """POST. Raises ApiError 409 where the object exists."""

    async def replace(self, obj: Obj) -> Obj:
        """PUT; with a resourceVersion in it, ApiError 409 says that somebody was faster."""

    async def apply(self, obj: Obj) -> Obj:
        """Server-side apply by the operator's field manager, with force."""

    async def apply_status(self, obj: Obj, manager: str = FIELD_MANAGER) -> Obj:
        """Server-side apply of the status subresource. Raises ApiError 404 where the object is gone.

        A manager's fields are all those that it applied last; it takes away its own others and nobody else's.
        """

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Obj) -> Obj:
        """JSON merge patch."""

    async def delete(self, kind: Kind, namespace: str | None, name: str, uid: str | None = None) -> None:
        """Background deletion, of exactly the object with that uid if one is given."""

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, limit: int) -> bytes | None:
        """The last `limit` bytes that the container wrote; None where there is no log (any more)."""


async def load_configuration(kubeconfig: str | None = None, context: str | None = None) -> client.Configuration:
    """Credentials: the kubeconfig if one is given, else the pod's ServiceAccount. Raises ConfigException."""
    configuration = client.Configuration()
    if kubeconfig:
        await config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    else:
        config.load_incluster_config(client_configuration=configuration)
    return configuration


class ApiCluster:
    """`Cluster` over HTTP."""

    def __init__(self, configuration: client.Configuration) -> None:
        configuration.connection_pool_maxsize = 64
        self._api = client.ApiClient(configuration)

    async def close(self) -> None:
        """Gives the connections back."""
        await self._api.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Obj | None = None,
        content_type: str = "application/json",
    ) -> Obj:
        async with self._open(method, path, query, body, content_type) as response:
            answer: Obj = json.loads(await response.read())
            return answer

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Obj | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer before it is read. Raises ApiError, also for what goes wrong while it is read."""
        try:
            response = await self._api.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
                response_types_map={},
                _preload_content=False,
                _request_timeout=REQUEST_SECONDS,
            )
            try:
                if response.status >= 400:
                    raise _api_error(response.status, (await response.read()).decode(errors="replace"))
                yield response
            finally:
                response.release()
        except client.ApiException as error:
            # Depending on where it fails, the client raises with the body read or unread.
            raise _api_error(error.status or 0, str(error.body or error.reason or "")) from None
        except TimeoutError:
            raise ApiError(0, "Timeout", f"{method} {path} got no answer in {REQUEST_SECONDS:.0f} s") from None
        except aiohttp.ClientError as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error}") from error

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Obj | None:
        """See `Cluster`."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: Kind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Obj]:
        """See `Cluster`."""
        query = {"limit": str(LIST_CHUNK)}
        if labels:
            query["labelSelector"] = ",".join(f"{k}={v}" if v else k for k, v in labels.items())
        items: list[Obj] = []
        while True:
            page = await self._call("GET", kind.path(namespace), query=query)
            # Items of a typed list come without these two, and everything else relies on them.
            items += [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in page.get("items") or []]
            token = page.get("metadata", {}).get("continue")
            if not token:
                return items
            query["continue"] = token

    async def create(self, obj: Obj) -> Obj:
        """See `Cluster`."""
        kind, namespace, _ = ref_of(obj)
        return await self._call("POST", kind.path(namespace), query={"fieldManager": FIELD_MANAGER}, body=obj)

    async def replace(self, obj: Obj) -> Obj:
        """See `Cluster`."""
        kind, namespace, name = ref_of(obj)
        return await self._call("PUT", kind.path(namespace, name), query={"fieldManager": FIELD_MANAGER}, body=obj)

    async def apply(self, obj: Obj) -> Obj:
        """See `Cluster`."""
        return await self._apply(obj, None, FIELD_MANAGER)

    async def apply_status(self, obj: Obj, manager: str = FIELD_MANAGER) -> Obj:
        """See `Cluster`."""
        return await self._apply(obj, "status", manager)

    async def _apply(self, obj: Obj, subresource: str | None, manager: str) -> Obj:
        kind, namespace, name = ref_of(obj)
        return await self._call(
            "PATCH",
            kind.path(namespace, name, subresource),
            query={"fieldManager": manager, "force": "true"},
            body=obj,
            content_type="application/apply-patch+yaml",
        )

    async def merge(self, kind: Kind, namespace: str | None, name: str, patch: Obj) -> Obj:
        """See `Cluster`."""
        return await self._call(
            "PATCH",
            kind.path(namespace, name),
            query={"fieldManager": FIELD_MANAGER},
            body=patch,
            content_type="application/merge-patch+json",
        )

    async def delete(self, kind: Kind, namespace: str | None, name: str, uid: str | None = None) -> None:
        """See `Cluster`."""
        options: Obj = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options)
        except ApiError as error:
            # 409: another object has taken the name since; what was to be deleted is gone all the same.
            if error.status not in (404, 409):
                raise

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, limit: int) -> bytes | None:
        """See `Cluster`."""
        query = {"container": container, "previous": str(previous).lower(), "tailLines": str(LOG_LINES)}
        kept = bytearray()
        try:
            async with self._open("GET", POD.path(namespace, pod, "log"), query, accept="*/*") as response:
                async for chunk in response.content.iter_chunked(1 << 16):
                    kept += chunk
                    if len(kept) > 2 * limit:
                        del kept[:-limit]
        except ApiError as error:
            # 400: the container has not started, or never started before.
            if error.status in (400, 404):
                return None
            raise
        return bytes(kept[-limit:])


def ref_of(obj: Mapping[str, Any]) -> tuple[Kind, str | None, str]:
    """Kind, namespace and name of an object. Raises KeyError for a kind the operator has no business with."""
    metadata = obj["metadata"]
    return KINDS[obj["kind"]], metadata.get("namespace"), metadata.get("name", "")


def _api_error(status: int, body: str) -> ApiError:
    try:
        answer = json.loads(body)
        return ApiError(status, str(answer.get("reason") or status), str(answer.get("message") or body)[:2000])
    except (ValueError, AttributeError):
        return ApiError(status, str(status), body[:500])
