"""The command line with an API server and an S3 made of dictionaries."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rlrun.artifacts.layout import S3Uri
from rlrun.artifacts.store import Store
from rlrun.cli.cluster import RUN, Kind, Object
from rlrun.cli.errors import CliError, ConflictError, NotFoundError
from rlrun.cli.main import app
from rlrun.cli.session import Session
from typer.testing import CliRunner

from tests.unit.artifacts.seaweedfs import S3Server


@dataclass
class FakeCluster:
    """Objects by kind and name, and a list of everything that was asked."""

    namespace: str = "team"
    stored: dict[str, dict[str, Object]] = field(default_factory=dict)
    secrets: dict[str, Object] = field(default_factory=dict)
    pod_list: list[Object] = field(default_factory=list)
    logs: dict[str, list[str]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    failures: dict[str, CliError | KeyboardInterrupt] = field(default_factory=dict)
    looks: list[Object | BaseException] = field(default_factory=list)
    """Answers of `get RLRun`, one after the other; the last one stays."""

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if what in self.failures:
            raise self.failures[what]

    def put(self, kind: Kind, name: str, **parts: Any) -> Object:
        item = {
            "apiVersion": "rlrun.dev/v1alpha1",
            "kind": kind.name,
            "metadata": {"name": name, "namespace": self.namespace, "uid": f"uid-{name}", "managedFields": [{}]},
            "spec": {},
            **parts,
        }
        self.stored.setdefault(kind.name, {})[name] = item
        return item

    def objects(self, kind: Kind, *, all_namespaces: bool = False) -> list[Object]:
        self._call(f"list {kind.name}" + (" everywhere" if all_namespaces else ""))
        return list(self.stored.get(kind.name, {}).values())

    def get(self, kind: Kind, name: str) -> Object:
        self._call(f"get {kind.name} {name}")
        if kind is RUN and self.looks:
            look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            if isinstance(look, BaseException):
                raise look
            return look
        try:
            return self.stored[kind.name][name]
        except KeyError:
            raise NotFoundError(f"cannot get {kind.name} {name}: it does not exist") from None

    def create(self, kind: Kind, body: Object) -> Object:
        name = body["metadata"]["name"]
        self._call(f"create {kind.name} {name}")
        if name in self.stored.get(kind.name, {}):
            raise ConflictError(f"cannot create {kind.name} {name}: the name is taken")
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": f"uid-{name}", "namespace": self.namespace}
        self.stored.setdefault(kind.name, {})[name] = made
        return made

    def patch(self, kind: Kind, name: str, patch: Object) -> Object:
        self._call(f"patch {kind.name} {name}")
        self.stored[kind.name][name]["spec"] |= patch["spec"]
        return self.stored[kind.name][name]

    def delete(self, kind: Kind, name: str) -> None:
        self._call(f"delete {kind.name} {name}")
        del self.stored[kind.name][name]

    def create_secret(self, body: Object) -> None:
        self._call(f"create Secret {body['metadata']['name']}")
        if body["metadata"]["name"] in self.secrets:
            raise ConflictError("taken")
        self.secrets[body["metadata"]["name"]] = copy.deepcopy(body)

    def patch_secret(self, name: str, patch: Object) -> None:
        self._call(f"patch Secret {name}")
        self.secrets[name]["metadata"] |= patch["metadata"]

    def delete_secret(self, name: str) -> None:
        self._call(f"delete Secret {name}")
        self.secrets.pop(name, None)

    def pods(self, selector: str) -> list[Object]:
        self._call(f"pods {selector}")
        return self.pod_list

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None, previous: bool) -> Iterator[str]:
        self._call(f"log {pod}/{container} follow={follow} tail={tail} previous={previous}")
        lines = self.logs[pod]
        yield from (lines if tail is None else lines[len(lines) - tail :])


@dataclass
class FakeStore:
    """S3 as a dictionary."""

    contents: dict[str, bytes] = field(default_factory=dict)

    def list_files(self, uri: S3Uri) -> list[tuple[str, int]]:
        prefix = f"{uri}/"
        return sorted((k.removeprefix(prefix), len(v)) for k, v in self.contents.items() if k.startswith(prefix))

    def get_bytes(self, uri: S3Uri) -> bytes:
        return self.contents[str(uri)]

    def put_bytes(self, uri: S3Uri, data: bytes) -> None:
        self.contents[str(uri)] = data

    def delete_prefix(self, uri: S3Uri) -> int:
        found = [k for k in self.contents if k.startswith(f"{uri}/")]
        for key in found:
            del self.contents[key]
        return len(found)


@dataclass
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str


Rlrun = Callable[..., Answer]


@pytest.fixture
def api() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def s3() -> FakeStore:
    return FakeStore()


@pytest.fixture
def chosen() -> list[tuple[Path | None, str | None, str | None]]:
    """(kubeconfig, context, namespace) of each connection that a command made."""
    return []


@pytest.fixture
def rlrun(api: FakeCluster, s3: FakeStore, chosen: list[Any]) -> Rlrun:
    def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> FakeCluster:
        chosen.append((kubeconfig, context, namespace))
        api.namespace = namespace or api.namespace
        return api

    def invoke(*args: str, env: dict[str, str | None] | None = None, input: str | None = None) -> Answer:
        given = Session(connect=connect, store=lambda endpoint: s3, sleep=lambda seconds: None)  # type: ignore[arg-type,return-value]
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
    """Commands with the cluster of dictionaries and the real S3."""

    def invoke(*args: object, input: str | None = None) -> Answer:
        given = Session(connect=lambda *_: api, store=lambda _: store, sleep=lambda seconds: None)
        cleared = {"RLRUN_S3_BUCKET": None, "RLRUN_S3_PREFIX": None}
        result = CliRunner().invoke(app, [str(a) for a in args], obj=given, env=cleared, input=input)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return invoke
