"""A cluster, an S3 and orchestrators in memory, and the objects that tests start from.

The cluster keeps what the operator relies on: server-side apply merges into what is there and counts generations, a
status is a subresource, an owner's children go with it, preconditions hold. `step_kubelet` plays the controllers and
the node: Deployments and Jobs get pods.
"""

import base64
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ServiceUnavailable
from rlrun.storage.layout import RunLayout
from rlrun.storage.manifest import ArtifactKind, FileEntry, Manifest
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.artifact_store import Sizes
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.plan.actions import RunFilesDeletion
from rlrun_operator.planning.plan.artifact_catalog import ObservedArtifact
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.planning.policies.artifacts import FOLDER_KINDS
from rlrun_operator.runtime.metrics import RunPhaseCollector

Obj = dict[str, Any]
Labels = Mapping[str, str]
START = datetime(2026, 1, 1, tzinfo=UTC)

SETTINGS = OperatorSettings.model_validate(
    {
        "s3": {
            "endpointUrl": "http://s3.test:8333",
            "bucket": "rlrun",
            "credentialsSecret": {"namespace": "rlrun-system", "name": "s3"},
        },
        "images": {
            "orchestrator": {"repository": "rlrun-orchestrator", "tag": "t"},
            "trainer": {"repository": "rlrun-trainer", "tag": "t"},
            "inference": {"repository": "vllm", "tag": "t"},
        },
    }
)


def run_object(name: str = "reverse", namespace: str = "team", uid: str = "uid-1", **spec: Any) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "model": "tiny/model",
            "maxSteps": 10,
            "sampling": {"maxTokens": 64},
            "env": [{"id": "rlrun/reverse-text"}],
            **spec,
        },
    }


def model_object(model_id: str = "tiny/model", **spec: Any) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLModel",
        "metadata": {"name": model_id.replace("/", "-"), "uid": f"model-{model_id}", "resourceVersion": "1"},
        "spec": {
            "id": model_id,
            "source": "s3://rlrun/models/tiny",
            "seqLen": 256,
            "trainer": {"gpus": 0},
            "inference": {"gpus": 0},
            **spec,
        },
    }


def source_secret(**data: str) -> Obj:
    plain = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", **data}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s3", "namespace": "rlrun-system", "uid": "s3-source", "resourceVersion": "1"},
        "data": {k: base64.b64encode(v.encode()).decode() for k, v in plain.items()},
    }


def manifest(step: int, size: int = 100, **details: Any) -> Manifest:
    return Manifest(
        kind=ArtifactKind.checkpoint,
        files=[FileEntry(name="adapter_model.safetensors", size=size, sha256="0" * 64)],
        created_at=START,
        step=step,
        policy_version=step,
        details=details,
    )


class Crash(Exception):
    """The operator dies here."""


class MemoryCluster:
    """An API server in memory: the transport below the product's own client."""

    clone: Callable[[Obj], Obj] = staticmethod(copy.deepcopy)

    def __init__(self, *objects: Obj) -> None:
        self.kube = AsyncKubeClient(self)
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.versions = itertools.count(100)
        self.events: list[Obj] = []
        self.logs: dict[str, bytes] = {}
        self.writes = 0
        self.crash_after: int | None = None
        self.status_fields: dict[tuple[tuple[str, str, str], str], set[str]] = {}
        """Fields of a status by their manager."""
        for obj in objects:
            self.put(obj)

    def put(self, obj: Obj) -> None:
        obj = self.clone(obj)
        obj["metadata"].setdefault("uid", f"made-{next(self.versions)}")
        obj["metadata"]["resourceVersion"] = str(next(self.versions))
        self.objects[self._key(obj)] = obj

    def find(self, kind: str, name: str, namespace: str = "team") -> Obj | None:
        return self.objects.get((kind, namespace, name))

    def all(self, *kinds: str) -> list[Obj]:
        return [o for (kind, _, _), o in sorted(self.objects.items()) if kind in kinds]

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

    async def send(self, request: KubeRequest) -> Obj:
        """Answers by the method of the request's verb, which tests may replace."""
        name = request.verb.name.lower() + (f"_{request.subresource}" if request.subresource else "")
        answer: Obj = await getattr(self, name)(request)
        return answer

    @asynccontextmanager
    async def stream(self, request: KubeRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        text = await self.log(request)

        async def chunks() -> AsyncIterator[bytes]:
            yield text

        yield chunks()

    def _held(self, request: KubeRequest) -> Obj:
        """The object that a request is about."""
        name = request.name or ""
        found = self.objects.get((request.kind.kind, request.namespace or "", name))
        if found is None:
            raise ApiError(404, "NotFound", f"{name} not found", details={"name": name})
        return found

    async def get(self, request: KubeRequest) -> Obj:
        return self.clone(self._held(request))

    async def list(self, request: KubeRequest) -> Obj:
        pairs = [part.partition("=") for part in request.query.get("labelSelector", "").split(",") if part]
        items = []
        for (kind, namespace, _), obj in sorted(self.objects.items()):
            mine = obj["metadata"].get("labels") or {}
            wanted = all(key in mine and value in ("", mine[key]) for key, _, value in pairs)
            if kind == request.kind.kind and request.namespace in (None, namespace) and wanted:
                items.append(self.clone(obj))
        return {"items": items, "metadata": {}}

    async def create(self, request: KubeRequest) -> Obj:
        self._write()
        obj = request.body or {}
        if obj["kind"] == "Event":
            self.events.append(obj)
            return obj
        if self._key(obj) in self.objects:
            raise ApiError(409, "AlreadyExists", obj["metadata"]["name"])
        self.put(obj)
        return obj

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
        new = copy.deepcopy(obj)
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
        return new

    async def apply_status(self, request: KubeRequest) -> Obj:
        self._write()
        obj, old, manager = request.body or {}, self._held(request), request.field_manager or ""
        if obj["metadata"].get("uid") not in (None, old["metadata"]["uid"]):
            raise ApiError(409, "Conflict", "uid mismatch")
        mine = self.status_fields.get((key := self._key(obj), manager), set())
        others = {f for (k, m), fields in self.status_fields.items() if k == key and m != manager for f in fields}
        held = dict(old.get("status") or {})
        # What nobody applied was put there by a test; the operator takes it for its own.
        lost = (set(held) if manager == "rlrun-operator" else mine) - others
        self.status_fields[key, manager] = set(obj["status"])
        status = {k: v for k, v in held.items() if k not in lost} | copy.deepcopy(obj["status"])
        self.put({**old, "status": status})
        return obj

    async def patch(self, request: KubeRequest) -> Obj:
        self._write()
        old, name = self._held(request), request.name
        metadata = dict((request.body or {})["metadata"])
        for precondition in ("resourceVersion", "uid"):
            if metadata.pop(precondition, old["metadata"].get(precondition)) != old["metadata"].get(precondition):
                raise ApiError(409, "Conflict", f"{name} has changed")
        old = copy.deepcopy(old)
        old["metadata"].setdefault("annotations", {}).update(metadata.pop("annotations", {}))
        old["metadata"] |= metadata
        self.put(old)
        self._collect(old)
        return self.objects.get(self._key(old), old)

    async def delete(self, request: KubeRequest) -> Obj:
        self._write()
        old = self._held(request)
        if ((request.body or {}).get("preconditions") or {}).get("uid") not in (None, old["metadata"]["uid"]):
            raise ApiError(409, "Conflict", "uid mismatch")
        self.request_deletion(old)
        return old

    async def log(self, request: KubeRequest) -> bytes:
        """`logs` has them by pod/container, with `.previous` at its end."""
        previous = ".previous" if request.query["previous"] == "true" else ""
        text = self.logs.get(f"{request.name}/{request.query['container']}{previous}")
        if text is None:
            raise ApiError(400, "BadRequest", "the container has no log")
        return text

    def request_deletion(self, obj: Obj, now: datetime = START) -> None:
        obj["metadata"]["deletionTimestamp"] = now.isoformat().replace("+00:00", "Z")
        self._collect(obj)

    def _collect(self, obj: Obj) -> None:
        if not obj["metadata"].get("deletionTimestamp") or obj["metadata"].get("finalizers"):
            return
        self.objects.pop(self._key(obj), None)
        uid = obj["metadata"]["uid"]
        for child in list(self.objects.values()):
            if any(o["uid"] == uid for o in child["metadata"].get("ownerReferences") or []):
                self.request_deletion(child)


class MemoryArtifacts:
    def __init__(self) -> None:
        self.folders: dict[str, Manifest | None] = {}
        self.broken: dict[str, str] = {}
        """What a folder lacks of its manifest."""
        self.files: dict[str, bytes] = {}
        self.problem: Problem | None = None
        self.purged: list[RunFilesDeletion] = []
        self.crash_on_delete = False

    async def check(self, variables: Mapping[str, str], bucket: str) -> Problem | None:
        return self.problem

    async def list(self, variables: Mapping[str, str], layout: RunLayout, ready: Sizes) -> list[ObservedArtifact]:
        found = []
        for folder, kind in FOLDER_KINDS.items():
            for uri, held in sorted(self.folders.items()):
                prefix = f"{layout.root / folder}/step-"
                if uri.startswith(prefix):
                    step = int(uri.removeprefix(prefix))
                    known = ready.get((kind, step))
                    problem = self.broken.get(uri)
                    if known is not None and held is None:
                        problem = "manifest.json is missing"
                    read = problem is not None or known is None or (held is not None and held.size != known)
                    found.append(ObservedArtifact(kind, step, uri, held if read else None, problem))
        return found

    async def verify(self, variables: Mapping[str, str], uri: str) -> str | None:
        return self.broken.get(uri)

    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        self.files[uri] = data

    async def delete(self, variables: Mapping[str, str], uri: str) -> None:
        self.folders.pop(uri, None)

    async def purge(self, variables: Mapping[str, str], purge: RunFilesDeletion) -> None:
        self.purged.append(purge)
        self.folders = {u: m for u, m in self.folders.items() if not u.startswith(purge.root) or u in purge.keep}


class MemoryPoller:
    def __init__(self) -> None:
        self.answer: RunStatus | None = None

    async def status(self, namespace: str, name: str) -> RunStatus:
        if self.answer is None:
            raise ServiceUnavailable(Problem(reason="Unreachable", message="nobody answers"))
        return self.answer


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def pod(
    role: str,
    component: str | None = None,
    *,
    uid: str = "",
    attempt: int = 1,
    run_uid: str = "uid-1",
    ready: bool = False,
    phase: str = "Running",
    restarts: int = 0,
    state: Obj | None = None,
    last: Obj | None = None,
    deleting: bool = False,
    conditions: list[Obj] | None = None,
    created: str = "2026-01-01T00:00:00Z",
    container: str | None = None,
) -> Obj:
    component = component or role
    name = f"reverse-{component}-{uid or 'x'}"
    container = container or {"inference": "vllm"}.get(role, role)
    found: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid or f"pod-{component}",
            "creationTimestamp": created,
            "labels": {
                "rlrun.dev/run": "reverse",
                "rlrun.dev/run-uid": run_uid,
                "rlrun.dev/role": role,
                "rlrun.dev/component": component,
                "rlrun.dev/attempt": str(attempt),
            },
        },
        "spec": {"containers": [{"name": container, "image": "img:1", "resources": {"limits": {"memory": "256Mi"}}}]},
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}, *(conditions or [])],
            "containerStatuses": [
                {
                    "name": container,
                    "restartCount": restarts,
                    "state": state or ({"running": {}} if phase == "Running" else {}),
                    "lastState": last or {},
                }
            ],
        },
    }
    if deleting:
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return found


def terminated(code: int, reason: str = "Error", message: str = "") -> Obj:
    return {
        "terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-01-01T00:00:00Z"}
    }


def step_kubelet(cluster: MemoryCluster, *, ready: bool = True) -> None:
    """Deployments and running Jobs have one pod per replica; pods without them go."""
    wanted: dict[str, Obj] = {}
    for obj in cluster.all("Deployment", "Job"):
        template = obj["spec"]["template"]
        if obj["kind"] == "Job" and obj.get("status", {}).get("conditions"):
            continue
        for i in range(obj["spec"].get("replicas", 1)):
            name = f"{obj['metadata']['name']}-{i}"
            wanted[name] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": obj["metadata"]["namespace"],
                    "labels": template["metadata"]["labels"],
                    "ownerReferences": [{"uid": obj["metadata"]["uid"]}],
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": template["spec"],
                "status": {
                    "phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
                    "containerStatuses": [
                        {"name": c["name"], "restartCount": 0, "state": {"running": {}}}
                        for c in template["spec"]["containers"]
                    ],
                },
            }
    for name, obj in wanted.items():
        existing = cluster.find("Pod", name, obj["metadata"]["namespace"])
        if existing is None:
            cluster.put(obj)


def end_orchestrator(cluster: MemoryCluster, code: int, message: str) -> None:
    """The orchestrator's container ends, and so does its Job."""
    for obj in cluster.all("Pod"):
        if obj["metadata"]["labels"]["rlrun.dev/role"] == "orchestrator":
            obj["status"]["phase"] = "Failed" if code else "Succeeded"
            obj["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            obj["status"]["containerStatuses"] = [
                {"name": "orchestrator", "restartCount": 0, "state": terminated(code, "Completed", message)}
            ]


@dataclass
class World:
    cluster: MemoryCluster
    artifacts: MemoryArtifacts = field(default_factory=MemoryArtifacts)
    poller: MemoryPoller = field(default_factory=MemoryPoller)
    clock: Clock = field(default_factory=Clock)
    settings: OperatorSettings = field(default_factory=lambda: SETTINGS)

    def reconciler(self) -> Reconciler:
        """A new operator: nothing is remembered from one to the next."""
        observer = Observer(self.cluster.kube, self.artifacts, self.poller, self.settings)
        applier = Applier(self.cluster.kube, self.artifacts)
        return Reconciler(observer, applier, self.settings, RunPhaseCollector(lambda: 0, lambda: 0), self.clock)

    async def reconcile(self, times: int = 1, name: str = "reverse") -> float | None:
        again = None
        for _ in range(times):
            again = await self.reconciler().reconcile(RunKey("team", name))
        return again

    @property
    def run(self) -> Obj:
        found = self.cluster.find("RLRun", "reverse")
        assert found is not None
        return found

    @property
    def status(self) -> Obj:
        return dict(self.run.get("status") or {})

    def condition(self, kind: str) -> Obj:
        return next(c for c in self.status["conditions"] if c["type"] == kind)

    def change_spec(self, **changes: Any) -> None:
        run = self.run
        self.cluster.put(
            {
                **run,
                "spec": {**run["spec"], **changes},
                "metadata": {**run["metadata"], "generation": run["metadata"]["generation"] + 1},
            }
        )

    async def start(self) -> None:
        """As far as all pods being there and ready."""
        await self.reconcile(2)
        step_kubelet(self.cluster)
        await self.reconcile()
