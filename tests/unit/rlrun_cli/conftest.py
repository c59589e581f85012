"""Command line with in-memory fakes of the cluster and S3."""

import builtins
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rlrun.kube.kinds import POD, RLRUN, ResourceKind
from rlrun.kube.objects import Labels, Obj
from rlrun.kube.requests import label_selector
from rlrun.storage.store import Store
from rlrun_cli.main import app
from rlrun_cli.remote.context import CliContext
from rlrun_cli.terminal.errors import CliError, ConflictError, NotFoundError
from typer.testing import CliRunner

from tests.support.fake_s3 import InMemoryStore
from tests.support.seaweedfs import S3Server


@dataclass
class FakeCluster:
    """Objects by kind and name, and a list of all calls."""

    namespace: str = "team"
    stored: dict[str, dict[str, Obj]] = field(default_factory=dict)
    pod_list: list[Obj] = field(default_factory=list)
    logs: dict[str, list[str]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    failures: dict[str, CliError | KeyboardInterrupt] = field(default_factory=dict)
    run_responses: list[Obj | BaseException] = field(default_factory=list)
    """Successive results of `get RLRun`; the last one repeats."""

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failures:
            raise self.failures[call]

    def put(self, kind: ResourceKind, name: str, **parts: Any) -> Obj:
        item = {
            "apiVersion": "rlrun.dev/v1alpha1",
            "kind": kind.kind,
            "metadata": {"name": name, "namespace": self.namespace, "uid": f"uid-{name}", "managedFields": [{}]},
            "spec": {},
            **parts,
        }
        self.stored.setdefault(kind.kind, {})[name] = item
        return item

    @property
    def secrets(self) -> dict[str, Obj]:
        return self.stored.setdefault("Secret", {})

    def list(
        self, kind: ResourceKind, labels: Labels | None = None, *, all_namespaces: bool = False
    ) -> "builtins.list[Obj]":
        chosen = f" {label_selector(labels)}" if labels else ""
        self._call(f"list {kind.kind}{chosen}" + (" everywhere" if all_namespaces else ""))
        if kind is POD:
            return self.pod_list
        return list(self.stored.get(kind.kind, {}).values())

    def get(self, kind: ResourceKind, name: str) -> Obj:
        self._call(f"get {kind.kind} {name}")
        if kind is RLRUN and self.run_responses:
            response = self.run_responses.pop(0) if len(self.run_responses) > 1 else self.run_responses[0]
            if isinstance(response, BaseException):
                raise response
            return response
        try:
            return self.stored[kind.kind][name]
        except KeyError:
            raise NotFoundError(f"cannot get {kind.kind} {name}: it does not exist") from None

    def create(self, obj: Obj) -> Obj:
        kind, name = obj["kind"], obj["metadata"]["name"]
        self._call(f"create {kind} {name}")
        if name in self.stored.get(kind, {}):
            raise ConflictError(f"cannot create {kind} {name}: an object with this name already exists")
        made = copy.deepcopy(obj)
        made["metadata"] |= {"uid": f"uid-{name}", "namespace": self.namespace}
        self.stored.setdefault(kind, {})[name] = made
        return made

    def patch(self, kind: ResourceKind, name: str, changes: Obj) -> Obj:
        self._call(f"patch {kind.kind} {name}")
        for part, fields in changes.items():
            self.stored[kind.kind][name][part] |= fields
        return self.stored[kind.kind][name]

    def delete(self, kind: ResourceKind, name: str, *, missing_ok: bool = False) -> None:
        self._call(f"delete {kind.kind} {name}")
        if self.stored.get(kind.kind, {}).pop(name, None) is None and not missing_ok:
            raise NotFoundError(f"cannot delete {kind.kind} {name}: it does not exist")

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
        self._call(f"log {pod}/{container} follow={follow} tail={tail} previous={previous}")
        lines = self.logs[pod]
        yield from (lines if tail is None else lines[len(lines) - tail :])


@dataclass
class Answer:
    """Result of a command."""

    code: int
    out: str
    err: str


Rlrun = Callable[..., Answer]


@pytest.fixture
def api() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def s3() -> InMemoryStore:
    return InMemoryStore("b")


@pytest.fixture
def chosen() -> list[tuple[Path | None, str | None, str | None]]:
    """Kubeconfig, context and namespace of each connection of a command."""
    return []


@pytest.fixture
def rlrun(api: FakeCluster, s3: InMemoryStore, chosen: list[Any]) -> Rlrun:
    def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> FakeCluster:
        chosen.append((kubeconfig, context, namespace))
        api.namespace = namespace or api.namespace
        return api

    def invoke(*args: str, env: dict[str, str | None] | None = None, input: str | None = None) -> Answer:
        given = CliContext(connect=connect, store=lambda endpoint: s3, sleep=lambda seconds: None)  # type: ignore[arg-type,return-value]
        cleared = {"RLRUN_S3_BUCKET": None, "RLRUN_S3_PREFIX": None, "AWS_ENDPOINT_URL_S3": None}
        result = CliRunner().invoke(app, [str(a) for a in args], obj=given, env=cleared | (env or {}), input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.bucket


@pytest.fixture
def on_s3(api: FakeCluster, store: Store) -> Rlrun:
    """Commands with the fake cluster and a real S3."""

    def invoke(*args: object, input: str | None = None) -> Answer:
        given = CliContext(connect=lambda *_: api, store=lambda _: store, sleep=lambda seconds: None)
        cleared = {"RLRUN_S3_BUCKET": None, "RLRUN_S3_PREFIX": None}
        result = CliRunner().invoke(app, [str(a) for a in args], obj=given, env=cleared, input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return invoke
