"""Builders of requests to the API server, and parsers of responses. Transports send the requests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from enum import StrEnum
from typing import Any

from rlrun.api.base.received import read_stored
from rlrun.kube.errors import INVALID_ANSWER, ApiError
from rlrun.kube.kinds import POD, SERVICE, SERVICE_ACCOUNT, ResourceKind, ref_of
from rlrun.kube.objects import Labels, Obj

WATCH_GRACE = 10.0
"""Seconds that the client waits beyond the requested duration of a watch before it closes the connection."""
PAGE_SIZE = 500
"""Maximum number of objects in one page of a list."""


class Verb(StrEnum):
    """Operation on objects. The value is used in messages."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    REPLACE = "replace"
    APPLY = "apply"
    PATCH = "change"
    DELETE = "delete"
    LOG = "read the log of"


METHODS = {
    Verb.GET: "GET",
    Verb.LIST: "GET",
    Verb.WATCH: "GET",
    Verb.CREATE: "POST",
    Verb.REPLACE: "PUT",
    Verb.APPLY: "PATCH",
    Verb.PATCH: "PATCH",
    Verb.DELETE: "DELETE",
    Verb.LOG: "GET",
}
CONTENT_TYPES = {Verb.APPLY: "application/apply-patch+yaml", Verb.PATCH: "application/merge-patch+json"}


@dataclass(frozen=True)
class KubeRequest:
    """Request to the API server: for a collection if `name` is None, for all namespaces if `namespace` is None."""

    verb: Verb
    kind: ResourceKind
    namespace: str | None = None
    name: str | None = None
    body: Obj | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    field_manager: str | None = None
    subresource: str | None = None
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional headers, which may contain a token."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """Impersonation headers: the user for whom the request is sent, and one header per group. Only AsyncApiTransport
    sends them.
    """
    seconds: float | None = None
    """Time limit in seconds for the complete response. None uses the client's limit."""
    limit_bytes: int | None = None
    """Maximum size of the response in bytes. None uses the client's limit."""

    def __str__(self) -> str:
        """Return a phrase that follows "cannot": "get RLRun team/first"."""
        if self.verb in (Verb.LIST, Verb.WATCH):
            return f"{self.verb} {self.kind.plural}" + (f" in namespace {self.namespace}" if self.namespace else "")
        metadata = (self.body or {}).get("metadata") or {}
        name = self.name or metadata.get("name") or f"{metadata.get('generateName', '')}*"
        place = f"{self.namespace}/{name}" if self.kind.namespaced and self.namespace else name
        if self.verb is Verb.LOG:
            return f"{self.verb} {place} ({self.query.get('container', '')})"
        return f"{self.verb} {f'the {self.subresource} of ' if self.subresource else ''}{self.kind.kind} {place}"

    @property
    def method(self) -> str:
        """HTTP method."""
        return METHODS[self.verb]

    @property
    def path(self) -> str:
        """URL path."""
        is_collection = self.verb in (Verb.LIST, Verb.WATCH) or (self.verb is Verb.CREATE and not self.subresource)
        name = None if is_collection else self.name
        return self.kind.path(self.namespace, name, self.subresource)

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters of the URL."""
        manager = {"fieldManager": self.field_manager} if self.field_manager else {}
        # Force: the project owns every field that it applies, even if another manager has changed it.
        return {**self.query, **manager, **({"force": "true"} if self.verb is Verb.APPLY else {})}

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers."""
        accepted = "*/*" if self.verb is Verb.LOG else "application/json"
        content = CONTENT_TYPES.get(self.verb, "application/json")
        return {"Accept": accepted, "Content-Type": content, **self.extra_headers}


def get(kind: ResourceKind, namespace: str | None, name: str) -> KubeRequest:
    """Return the request for one object."""
    return KubeRequest(Verb.GET, kind, namespace if kind.namespaced else None, name)


def list_page(
    kind: ResourceKind,
    namespace: str | None = None,
    labels: Labels | None = None,
    *,
    fields: str = "",
    selector: str = "",
) -> KubeRequest:
    """Return the request for the first page of a list.

    `fields` and `selector` are field and label selectors, as in `kubectl --field-selector` and `-l`.
    """
    query = {"limit": str(PAGE_SIZE)}
    if wanted := ",".join(part for part in (label_selector(labels or {}), selector) if part):
        query["labelSelector"] = wanted
    if fields:
        query["fieldSelector"] = fields
    return KubeRequest(Verb.LIST, kind, namespace if kind.namespaced else None, query=query)


def next_page(request: KubeRequest, page: Obj) -> KubeRequest | None:
    """Return the request for the next page of the same list, or None after the last page."""
    token = str((page.get("metadata") or {}).get("continue") or "")
    return replace_fields(request, query={**request.query, "continue": token}) if token else None


def smaller_page(request: KubeRequest) -> KubeRequest | None:
    """Return the request for a page with a tenth of the objects, or None if the page already has only one object."""
    objects = int(request.query["limit"])
    if objects == 1:
        return None
    return replace_fields(request, query={**request.query, "limit": str(max(1, objects // 10))})


def list_named(kind: ResourceKind, namespace: str | None, name: str) -> KubeRequest:
    """Return the list request for the object with this name, for accounts that may list but not get."""
    query = {"fieldSelector": f"metadata.name={name}"}
    return KubeRequest(Verb.LIST, kind, namespace if kind.namespaced else None, query=query)


TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
METADATA_OF_ONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_OF_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Printed:
    """Query for objects that the API server returns as rows of a Table, as for `kubectl get`."""

    kind: ResourceKind
    namespace: str | None = None
    selector: str = ""
    """Label selector."""
    fields: str = ""
    """Field selector."""
    has_objects: bool = False
    """True if rows contain complete objects. If false, they contain only the metadata."""

    def first_page(self) -> KubeRequest:
        """Return the request for the first page of the list as a Table."""
        return self._as_table(list_page(self.kind, self.namespace, fields=self.fields, selector=self.selector))

    def changes(self, version: str, seconds: float) -> KubeRequest:
        """Return the request for a watch after `version`, for at most `seconds`. Each event contains a Table."""
        return self._as_table(watch(self.kind, self.namespace, self.selector, self.fields, version, seconds))

    def _as_table(self, request: KubeRequest) -> KubeRequest:
        query = {**request.query, "includeObject": "Object" if self.has_objects else "Metadata"}
        return replace_fields(request, query=query, extra_headers={"Accept": TABLE})


def get_metadata(kind: ResourceKind, namespace: str, name: str) -> KubeRequest:
    """Return the request for the metadata of one object."""
    return KubeRequest(Verb.GET, kind, namespace, name, extra_headers={"Accept": METADATA_OF_ONE})


def list_selected(kind: ResourceKind, namespace: str, fields: str, limit: int) -> KubeRequest:
    """Return the request for at most `limit` objects that the field selector `fields` matches."""
    query = {"limit": str(limit), **({"fieldSelector": fields} if fields else {})}
    return KubeRequest(Verb.LIST, kind, namespace, query=query)


def list_metadata(kind: ResourceKind, namespace: str, fields: str, limit: int) -> KubeRequest:
    """Return the request for the metadata of at most `limit` objects that the field selector `fields` matches."""
    request = list_selected(kind, namespace, fields, limit)
    return replace_fields(request, extra_headers={"Accept": METADATA_OF_LIST})


def list_metadata_page(kind: ResourceKind, namespace: str | None, labels: Labels | None) -> KubeRequest:
    """Return the request for the first page of a list with only the metadata of the objects."""
    return replace_fields(list_page(kind, namespace, labels), extra_headers={"Accept": METADATA_OF_LIST})


def watch(
    kind: ResourceKind, namespace: str | None, selector: str, fields: str, version: str, seconds: float
) -> KubeRequest:
    """Return the request that watches complete objects for changes after `version`, for at most `seconds`."""
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": f"{seconds:.0f}",
        **({"labelSelector": selector} if selector else {}),
        **({"fieldSelector": fields} if fields else {}),
    }
    place = namespace if kind.namespaced else None
    return KubeRequest(Verb.WATCH, kind, place, query=query, seconds=seconds + WATCH_GRACE)


def create(obj: Obj, field_manager: str | None, namespace: str | None = None) -> KubeRequest:
    """Return the request that creates the object, in `namespace` or else in the object's own namespace."""
    kind, own_namespace, name = ref_of(obj)
    place = (namespace or own_namespace) if kind.namespaced else None
    return KubeRequest(Verb.CREATE, kind, place, name or None, obj, field_manager=field_manager)


def dry_run(obj: Obj, field_manager: str | None) -> KubeRequest:
    """Return the request for a dry run of the object's creation, in which unknown fields are errors."""
    return replace_fields(create(obj, field_manager), query={"dryRun": "All", "fieldValidation": "Strict"})


def create_token(namespace: str, account: str, seconds: int, audience: str = "") -> KubeRequest:
    """Return the request for a ServiceAccount token. The default audience is the API server."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "metadata": {},
        "spec": {"expirationSeconds": seconds, **({"audiences": [audience]} if audience else {})},
    }
    return KubeRequest(Verb.CREATE, SERVICE_ACCOUNT, namespace, account, body, subresource="token")


SERVICE_VERBS = {"GET": Verb.GET, "POST": Verb.CREATE, "DELETE": Verb.DELETE}


def call_service(
    namespace: str,
    service: str,
    method: str,
    path: str,
    body: Obj | None,
    headers: Mapping[str, str],
    seconds: float | None = None,
) -> KubeRequest:
    """Return the request (GET, POST or DELETE) that the API server proxies to a Service (`name:port`)."""
    verb, place = SERVICE_VERBS[method], f"proxy{path}"
    return KubeRequest(
        verb, SERVICE, namespace, service, body, subresource=place, extra_headers=headers, seconds=seconds
    )


def replace(obj: Obj, field_manager: str | None) -> KubeRequest:
    """Return the request that replaces the object."""
    kind, namespace, name = ref_of(obj)
    return KubeRequest(Verb.REPLACE, kind, namespace, name, obj, field_manager=field_manager)


def apply(obj: Obj, field_manager: str | None, subresource: str | None = None) -> KubeRequest:
    """Return the request for a server-side apply of the object, or of its subresource."""
    kind, namespace, name = ref_of(obj)
    return KubeRequest(Verb.APPLY, kind, namespace, name, obj, field_manager=field_manager, subresource=subresource)


def patch(
    kind: ResourceKind,
    namespace: str | None,
    name: str,
    changes: Obj,
    field_manager: str | None,
    subresource: str | None = None,
) -> KubeRequest:
    """Return the request for a JSON merge patch of an object, or of its subresource."""
    place = namespace if kind.namespaced else None
    return KubeRequest(Verb.PATCH, kind, place, name, changes, field_manager=field_manager, subresource=subresource)


def delete(
    kind: ResourceKind,
    namespace: str | None,
    name: str,
    uid: str | None = None,
    resource_version: str | None = None,
    grace_seconds: int | None = None,
) -> KubeRequest:
    """Return the request that deletes the object. If `uid` or `resource_version` is given, the object must match it.

    Dependents are deleted in the background. Otherwise the pods of a Job would be orphaned.
    """
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    if any(preconditions.values()):
        options["preconditions"] = {key: value for key, value in preconditions.items() if value}
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return KubeRequest(Verb.DELETE, kind, namespace if kind.namespaced else None, name, options)


def log(
    namespace: str,
    pod: str,
    container: str,
    *,
    previous: bool = False,
    tail_lines: int | None = None,
    since_seconds: int | None = None,
    since_time: str = "",
    timestamps: bool = False,
    follow: bool = False,
) -> KubeRequest:
    """Return the request for a container's log or, if `tail_lines` is given, for its last lines. With `follow`, the
    response continues with lines written later.

    The API server rounds `since_time` down to a second.
    """
    query = {"container": container, "previous": str(previous).lower()}
    if follow:
        query["follow"] = "true"
    if tail_lines is not None:
        query["tailLines"] = str(tail_lines)
    if since_seconds is not None:
        query["sinceSeconds"] = str(since_seconds)
    if since_time:
        query["sinceTime"] = since_time
    if timestamps:
        query["timestamps"] = "true"
    return KubeRequest(Verb.LOG, POD, namespace, pod, query=query, subresource="log")


def label_selector(labels: Labels) -> str:
    """Return the selector for objects with these labels."""
    return ",".join(f"{key}={value}" if value else key for key, value in labels.items())


def parse_object(request: KubeRequest, body: str | bytes) -> Obj:
    """Parse the object in the response. Raises ApiError if it is not a JSON object, for example an error page."""
    try:
        document = read_stored(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ApiError(0, INVALID_ANSWER, "the response is not a Kubernetes object", action=str(request))
    return document


def parse_page(request: KubeRequest, page: Obj) -> list[Obj]:
    """Return the objects of a page of a list.

    Raises ApiError for a response without items, because objects missing from a list are considered deleted.
    """
    items = page.get("items")
    if "items" in page and items is None and request.headers["Accept"] == METADATA_OF_LIST:
        items = []  # An empty list may have this form.
    if not isinstance(items, list):
        raise ApiError(0, INVALID_ANSWER, f"the response is not a list of {request.kind.plural}", action=str(request))
    # Items of built-in kinds lack these two fields, which all callers need.
    kind = {"apiVersion": request.kind.api_version, "kind": request.kind.kind}
    return [{**kind, **item} for item in items]


def version_of(page: Obj) -> str:
    """Return the version of the list that a page belongs to, from which a watch can start."""
    return str((page.get("metadata") or {}).get("resourceVersion") or "")


@dataclass(frozen=True)
class Table:
    """Objects as the API server prints them."""

    columns: list[Obj]
    """Definitions with `name`, `type` and `priority`, which is 0 for columns that are always shown. Empty after the
    first event of a watch.
    """
    rows: list[Obj]
    """Rows with `cells`, in the order of the columns, and `object`: the metadata, or the complete object."""
    version: str
    """Version from which a watch continues: that of the collection or, in an event, of the object."""


def parse_table(request: KubeRequest, answer: Obj) -> Table:
    """Parse a page of a list, or the object of an event. Raises ApiError if it is not a Table."""
    if answer.get("kind") != "Table":
        raise ApiError(0, INVALID_ANSWER, f"the response is not a Table of {request.kind.plural}", action=str(request))
    return Table(answer.get("columnDefinitions") or [], answer.get("rows") or [], version_of(answer))


def parse_event(request: KubeRequest, line: bytes) -> tuple[str, Obj]:
    """Parse a line of a watch. Returns type and object. Raises ApiError if the line is invalid or contains an error."""
    event = parse_object(request, line)
    obj = event.get("object")
    if not isinstance(obj, dict):
        raise ApiError(0, INVALID_ANSWER, "the response is not a watch event", action=str(request))
    if event.get("type") == "ERROR":
        raise ApiError.from_response(int(obj.get("code") or 0), json.dumps(obj), str(request))
    return str(event.get("type")), obj
