"""API server in memory: the transport below the product's own clients.

It keeps what operator and command line rely on: server-side apply merges into what is there and counts generations, a
status is a subresource, an owner's children go with it, preconditions hold.
"""

import itertools
import json
import marshal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.connection.cluster_clock import ClusterClock
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun_operator.planning.policies.artifacts.artifact_objects import FOLDER_KINDS

from tests.support.clocks import START

KUBELET = "tests/kubelet"
"""Finalizer by which a pod stays until its kubelet says that its processes have ended."""
TRACKING = "batch.kubernetes.io/job-tracking"
"""Finalizer of a Job on its pods. It stays until the end of the pod has been counted, or the Job is gone."""


class Crash(Exception):
    """The operator dies here."""


def arrived(value: Any) -> Any:
    """Return a value as it arrives on the wire: what JSON cannot carry is refused, tuples become lists."""
    return json.loads(json.dumps(value))


def copied(value: Any) -> Any:
    """Return a deep copy of what is stored already. copy.deepcopy would take most of a test's time, JSON a third."""
    try:
        # Version 2 keeps no references: a list that occurs twice becomes two lists, as in JSON.
        return marshal.loads(marshal.dumps(value, 2))
    except ValueError:
        # Enumerations that a test has put into a stored object.
        return arrived(value)


class FakeCluster:
    """An API server in memory: the transport below the product's own client."""

    def __init__(self, *objects: Obj) -> None:
        self.kube = AsyncKubeClient(self)
        self.time: Callable[[], datetime] = lambda: START
        """Time of creations and deletions in the metadata of objects, and of the responses."""
        self.clock: ClusterClock | None = None
        """A client's clock, which the responses measure."""
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.versions = itertools.count(100)
        self.events: list[Obj] = []
        self.user = "ann"
        """Name of the client."""
        self.logs: dict[str, bytes] = {}
        self.requests: list[KubeRequest] = []
        self.answers: dict[str, list[Any]] = {}
        """Successive answers to the request with that phrase ("get RLRun team/first") instead of what is stored; the
        last one repeats. An exception is raised. The answer of a log is a list of its chunks."""
        self.writes = 0
        self.crash_after: int | None = None
        self.status_fields: dict[tuple[tuple[str, str, str], str], set[str]] = {}
        """Fields of a status by their manager."""
        for obj in objects:
            self.put(obj)

    def put(self, obj: Obj) -> None:
        obj = self._identified(obj)
        obj["metadata"]["resourceVersion"] = str(next(self.versions))
        self.objects[self._key(obj)] = obj

    def _identified(self, obj: Obj) -> Obj:
        """Return the object with what the API server adds before it stores it, in a dry run as well."""
        obj = arrived(obj)
        obj["metadata"].setdefault("uid", f"made-{next(self.versions)}")
        obj["metadata"].setdefault("creationTimestamp", self.time().isoformat().replace("+00:00", "Z"))
        return obj

    def find(self, kind: str, name: str, namespace: str = "team") -> Obj | None:
        return self.objects.get((kind, namespace, name))

    def held(self, kind: str, name: str, namespace: str = "team") -> Obj:
        """The object itself, which is there."""
        return self.objects[kind, namespace, name]

    def all(self, *kinds: str) -> list[Obj]:
        return [self.objects[key] for key in sorted(key for key in self.objects if key[0] in kinds)]

    @staticmethod
    def _key(obj: Obj) -> tuple[str, str, str]:
        return (obj["kind"], obj["metadata"].get("namespace") or "", obj["metadata"]["name"])

    def _write(self) -> None:
        if self.crash_after is not None:
            if self.crash_after <= 0:
                raise Crash
            self.crash_after -= 1
        self.writes += 1

    async def close(self) -> None:
        pass

    @property
    def calls(self) -> list[str]:
        """The requests so far as phrases: "get RLRun team/first"."""
        return [str(request) for request in self.requests]

    async def send(self, request: KubeRequest) -> Obj:
        """Answers by the method of the request's verb, which tests may replace."""
        name = request.verb.name.lower() + (f"_{request.subresource}" if request.subresource else "")
        with self._named(request):
            answer: Obj = self._scripted(request) or await getattr(self, name)(request)
        if self.clock is not None:
            self.clock.on_response(format_datetime(self.time(), usegmt=True), self.clock.monotonic())
        return answer

    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        chunks = await self.chunks(request)

        async def read() -> AsyncIterator[bytes]:
            for chunk in self.read(request, chunks):
                yield chunk

        yield read()

    async def chunks(self, request: KubeRequest) -> Sequence[bytes | Exception]:
        """The parts of a log as they arrive; an exception cuts it off."""
        with self._named(request):
            found: Sequence[bytes | Exception] = self._scripted(request) or [await self.log(request)]
            return found

    def read(self, request: KubeRequest, chunks: Sequence[bytes | Exception]) -> Iterator[bytes]:
        """Yields the parts as far as there is no exception among them."""
        with self._named(request):
            for chunk in chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk

    def _scripted(self, request: KubeRequest) -> Any:
        self.requests.append(request)
        answers = self.answers.get(str(request))
        if not answers:
            return None
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return arrived(answer) if isinstance(answer, dict) else answer

    @contextmanager
    def _named(self, request: KubeRequest) -> Iterator[None]:
        """Errors name the request, as those of the transport over HTTP do."""
        try:
            yield
        except ApiError as error:
            if error.action:
                raise
            action = str(request)
            raise ApiError(error.status, error.reason, error.message, action=action, details=error.details) from None

    def _held(self, request: KubeRequest) -> Obj:
        """The object that a request is about."""
        name = request.name or ""
        found = self.find(request.kind.kind, name, request.namespace or "")
        if found is None:
            raise ApiError(404, "NotFound", f"{name} not found", details={"name": name})
        return found

    async def get(self, request: KubeRequest) -> Obj:
        return copied(self._held(request))

    async def list(self, request: KubeRequest) -> Obj:
        pairs = [part.partition("=") for part in request.query.get("labelSelector", "").split(",") if part]
        items, fields = [], request.query.get("fieldSelector", "")
        for obj in self.all(request.kind.kind):
            if request.namespace not in (None, obj["metadata"].get("namespace") or "") or not _has_fields(obj, fields):
                continue
            mine = obj["metadata"].get("labels") or {}
            if all(key in mine and value in ("", mine[key]) for key, _, value in pairs):
                items.append(copied(obj))
        versions = [str(obj["metadata"].get("resourceVersion")) for obj in self.objects.values()]
        newest = max((int(version) for version in versions if version.isdigit()), default=1)
        return {"items": items, "metadata": {"resourceVersion": str(newest)}}

    async def create(self, request: KubeRequest) -> Obj:
        if request.query.get("dryRun") != "All":
            self._write()
        obj = request.body or {}
        if obj["kind"] == "SelfSubjectReview":
            return {"status": {"userInfo": {"username": self.user}}}
        if obj["kind"] == "Event":
            self.events.append(obj)
            return obj
        if request.namespace:
            obj = {**obj, "metadata": {"namespace": request.namespace, **obj["metadata"]}}
        if "name" not in obj["metadata"] and "generateName" in obj["metadata"]:
            name = f"{obj['metadata']['generateName']}{next(self.versions):05d}"
            obj = {**obj, "metadata": {**obj["metadata"], "name": name}}
        if self._key(obj) in self.objects:
            raise ApiError(409, "AlreadyExists", obj["metadata"]["name"])
        if request.query.get("dryRun") == "All":
            return self._identified(obj)
        self.put(obj)
        return copied(self.objects[self._key(obj)])

    async def replace(self, request: KubeRequest) -> Obj:
        self._write()
        obj, old = request.body or {}, self._held(request)
        if obj["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", obj["metadata"]["name"])
        self.put(obj)
        return obj

    async def apply(self, request: KubeRequest) -> Obj:
        self._write()
        obj = request.body or {}
        old = self.objects.get(self._key(obj))
        new = arrived(obj)
        version = new["metadata"].pop("resourceVersion", None)
        if old is not None and version not in (None, old["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", "the object has been modified")
        if old is not None:
            new["metadata"] = {**old["metadata"], **new["metadata"]}
            if obj["kind"] in FOLDER_KINDS.values():
                new["spec"] = {**old["spec"], **new["spec"]}  # sharedWith and deployed are the users'
            new = {**old, **new}
            if {k: v for k, v in new.items() if k != "metadata"} == {k: v for k, v in old.items() if k != "metadata"}:
                new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
                if new == old:
                    return old
        self.put(new)
        return copied(self.objects[self._key(new)])

    async def apply_status(self, request: KubeRequest) -> Obj:
        self._write()
        obj, old, manager = request.body or {}, self._held(request), request.field_manager or ""
        if obj["metadata"].get("uid") not in (None, old["metadata"]["uid"]):
            raise ApiError(409, "Conflict", "uid mismatch")
        if obj["metadata"].get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise ApiError(409, "Conflict", "the object has been modified")
        mine = self.status_fields.get((key := self._key(obj), manager), set())
        others = {f for (k, m), fields in self.status_fields.items() if k == key and m != manager for f in fields}
        held = dict(old.get("status") or {})
        # What nobody applied was put there by a test; the operator takes it for its own.
        lost = (set(held) if manager == "rlrun-operator" else mine) - others
        self.status_fields[key, manager] = set(obj["status"])
        status = {k: v for k, v in held.items() if k not in lost} | arrived(obj["status"])
        if obj["kind"] == "Workload":
            # Its managers share the list, by type.
            sent = {c["type"] for c in obj["status"].get("conditions") or []}
            kept = [c for c in held.get("conditions") or [] if c["type"] not in sent]
            status["conditions"] = [*kept, *(obj["status"].get("conditions") or [])]
        self.put({**old, "status": status})
        return copied(self.objects[self._key(obj)])

    async def patch(self, request: KubeRequest) -> Obj:
        self._write()
        old, changes = self._held(request), request.body or {}
        for precondition in ("resourceVersion", "uid"):
            held = old["metadata"].get(precondition)
            if (changes.get("metadata") or {}).get(precondition, held) != held:
                raise ApiError(409, "Conflict", f"{request.name} has changed")
        new = merged(old, changes)
        self.put(new)
        self._collect(new)
        return self.objects.get(self._key(new), new)

    async def patch_status(self, request: KubeRequest) -> Obj:
        changes = request.body or {}
        assert changes.keys() <= {"metadata", "status"}, "other fields are not of the subresource"
        return await self.patch(request)

    async def delete(self, request: KubeRequest) -> Obj:
        self._write()
        old = self._held(request)
        for key, value in ((request.body or {}).get("preconditions") or {}).items():
            if value != old["metadata"][key]:
                raise ApiError(409, "Conflict", f"{key} mismatch")
        if (request.body or {}).get("gracePeriodSeconds") == 0:
            # Without a grace period, Kubernetes does not wait for the kubelet.
            old["metadata"]["finalizers"] = [f for f in old["metadata"].get("finalizers") or [] if f != KUBELET]
        self.request_deletion(old)
        return old

    async def log(self, request: KubeRequest) -> bytes:
        """`logs` has them by pod/container, with `.previous` at its end."""
        previous = ".previous" if request.query["previous"] == "true" else ""
        text = self.logs.get(f"{request.name}/{request.query['container']}{previous}")
        if text is None:
            raise ApiError(400, "BadRequest", "the container has no log")
        lines = text.splitlines(keepends=True)
        return b"".join(lines[max(0, len(lines) - int(request.query.get("tailLines", len(lines)))) :])

    def request_deletion(self, obj: Obj, now: datetime | None = None) -> None:
        obj["metadata"]["deletionTimestamp"] = (now or self.time()).isoformat().replace("+00:00", "Z")
        obj["metadata"]["resourceVersion"] = str(next(self.versions))
        self._collect(obj)

    def _collect(self, obj: Obj) -> None:
        if not obj["metadata"].get("deletionTimestamp") or obj["metadata"].get("finalizers"):
            return
        self.objects.pop(self._key(obj), None)
        uid = obj["metadata"]["uid"]
        for child in list(self.objects.values()):
            if any(o["uid"] == uid for o in child["metadata"].get("ownerReferences") or []):
                child["metadata"]["finalizers"] = [
                    f for f in child["metadata"].get("finalizers") or [] if f != TRACKING
                ]
                self.request_deletion(child)


def merged(old: Any, changes: Any) -> Any:
    """The result of a JSON merge patch (RFC 7386)."""
    if not isinstance(changes, dict):
        return changes
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def _has_fields(obj: Obj, selector: str) -> bool:
    """True if the field has the value of `path=value`, or another one than that of `path!=value`."""
    if not selector:
        return True
    path, _, wanted = selector.partition("=")
    found: Any = obj
    for part in path.removesuffix("!").split("."):
        found = (found or {}).get(part)
    return (str(found or "") == wanted) != path.endswith("!")


def fail_creations(cluster: FakeCluster, kind: str, failure: BaseException, *, are_stored: bool = True) -> None:
    """Raise this instead of the answer to each creation of a kind, after or without its effect."""
    create = cluster.create

    async def fail(request: KubeRequest) -> Obj:
        is_other = request.kind.kind != kind
        stored = await create(request) if is_other or are_stored else {}
        if is_other:
            return stored
        raise failure

    cluster.create = fail  # type: ignore[method-assign]
