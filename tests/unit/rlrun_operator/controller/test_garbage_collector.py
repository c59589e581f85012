"""Sweeps of the operator against a real S3 and the cluster in memory. The rules are tested in `garbage_collection`."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, RUN_UID_LABEL, Reason
from rlrun.garbage_collection.installation import write_mark
from rlrun.garbage_collection.tombstones import RunTombstone, run_tombstone
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store
from rlrun_operator.cluster.tenants import TenancyProblem, no_problem
from rlrun_operator.config.settings import GarbageSettings
from rlrun_operator.controller import garbage_collector
from rlrun_operator.controller.garbage_collector import GarbageCollector
from rlrun_operator.runtime.leader_election import LeaseLost
from rlrun_operator.runtime.metrics import REGISTRY

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS
from tests.support.seaweedfs import S3Server

GONE, DONE, LOST = (f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 4))
CLUSTER = "uid-of-kube-system"
CREATED = "2026-01-01T00:00:00Z"


def made(kind: str, name: str, uid: str = "", **parts: object) -> Obj:
    metadata = {"name": name, "namespace": "team", "uid": uid or f"uid-{name}", "creationTimestamp": CREATED}
    api_version = "batch/v1" if kind == "Job" else "rlrun.dev/v1alpha1"
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": {}, **parts}


@dataclass
class Bench:
    """A deleted run with files and a Job, a finished one, and one that the cluster does not know."""

    server: S3Server
    store: Store
    root: S3Uri
    cluster: FakeCluster = field(default_factory=FakeCluster)
    holds_lease: bool = True
    tenancy_problem: TenancyProblem = no_problem
    watched: list[str] = field(default_factory=list)
    variables: dict[str, str] | Problem = field(default_factory=dict)

    def collector(self, *, delete: bool = True) -> GarbageCollector:
        s3 = SETTINGS.s3.model_copy(update={"bucket": self.root.bucket, "prefix": self.root.key})
        settings = SETTINGS.model_copy(update={"s3": s3, "watch_namespaces": self.watched})
        garbage = GarbageSettings(older_than="0s", delete=delete)

        async def variables() -> dict[str, str] | Problem:
            return self.variables

        return GarbageCollector(
            self.cluster.kube, settings, garbage, variables, lambda: self.holds_lease, self.tenancy_problem
        )

    def layout(self, uid: str, namespace: str = "team") -> RunLayout:
        return RunLayout(self.root / namespace / uid)

    def bury(self, uid: str, namespace: str = "team") -> None:
        record = RunTombstone(artifact_policy=ArtifactPolicy.delete).to_bytes()
        self.store.put_bytes(run_tombstone(self.root, namespace, uid), record)

    def stored(self) -> list[str]:
        return [name for name, _ in self.store.list_files(self.root)]

    @property
    def deleted(self) -> list[str]:
        return [str(request.name) for request in self.cluster.requests if request.verb is Verb.DELETE]


@pytest.fixture
def bench(s3_server: S3Server, store: Store, tmp_path: Path) -> Iterator[Bench]:
    seen = Bench(s3_server, store, S3Uri(s3_server.bucket, f"sweep/{tmp_path.name}"), variables=s3_server.environment)
    for uid in (GONE, DONE, LOST):
        store.upload_artifact({"a": b"x" * 20}, seen.layout(uid).checkpoint(10), ArtifactKind.checkpoint)
    store.put_bytes(seen.layout(DONE).checkpoint(20) / "torn", b"t")
    seen.bury(GONE)
    write_mark(store, seen.root, CLUSTER, replace=False)
    job = made("Job", "gone-orchestrator-a1")
    job["metadata"]["labels"] = {RUN_UID_LABEL: GONE, MANAGED_BY_LABEL: FIELD_MANAGER}
    for obj in (job, made("RLRun", "done", DONE, status={"phase": "Completed"})):
        seen.cluster.put(obj)
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": CLUSTER}}
    seen.cluster.put(system)
    yield seen
    store.delete_prefix(seen.root)


def measured(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_sweep_reports_and_deletes_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before, completed = bench.stored(), measured("rlrun_garbage_sweeps_total", outcome="completed")
    await bench.collector(delete=False).sweep()
    assert (bench.stored(), bench.deleted) == (before, [])
    assert measured("rlrun_garbage_sweeps_total", outcome="completed") == completed + 1
    expected = {"RunGone": 2, "NoManifest": 1, "RunUnknown": 1}
    assert {reason: measured("rlrun_garbage_items", reason=reason) for reason in expected} == expected
    for text in (
        "items that can be deleted: 3; unknown items, kept: 1",
        f"Folder {bench.layout(GONE).root}: RunGone",
        f"Folder {bench.layout(LOST).root}: RunUnknown",
        "secrets were skipped",
        "rlrun gc --mark-deleted",
    ):
        assert text in caplog.text
    assert "list secrets" not in bench.cluster.calls, "the operator has no right to"


async def test_a_long_report_is_cut_and_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(garbage_collector, "LOGGED", 2)
    await bench.collector(delete=False).sweep()
    assert caplog.text.count(": RunGone") + caplog.text.count(": NoManifest") == 2
    assert "further items that are not shown: 1" in caplog.text
    assert f"Folder {bench.layout(LOST).root}: RunUnknown" in caplog.text, "garbage does not crowd out unknown items"


async def test_a_sweep_deletes_exactly_the_garbage(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    expected = [name for name in bench.stored() if not name.startswith(f"team/{GONE}/") and not name.endswith("/torn")]
    await bench.collector().sweep()
    assert bench.stored() == expected
    assert bench.deleted == ["gone-orchestrator-a1"]
    assert "3 of 3 items deleted" in caplog.text
    await bench.collector().sweep()
    assert not any(GONE in name for name in bench.stored()), "the tombstone goes last"


@pytest.mark.parametrize("cause", ["mark", "mass deletion", "list of runs", "limit", "credentials", "object"])
async def test_a_sweep_that_fails_deletes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    failed = measured("rlrun_garbage_sweeps_total", outcome="failed")
    if cause == "mark":
        write_mark(bench.store, bench.root, "another-cluster", replace=True)
    elif cause == "mass deletion":
        for number in range(0x10, 0x14):
            bench.store.put_bytes(bench.layout(f"{number:08x}-0000-4000-8000-000000000000").run_json, b"{}")
            bench.bury(f"{number:08x}-0000-4000-8000-000000000000")
    elif cause == "list of runs":
        bench.cluster.answers["list rlruns"] = [ApiError(410, "Expired", "the continue token is too old")]
    elif cause == "limit":
        monkeypatch.setattr(garbage_collector, "LIMIT", 2)
    elif cause == "object":
        bench.cluster.put(made("RLCheckpoint", "of-an-older-schema"))
    else:
        bench.variables = Problem(reason=Reason.S3_CREDENTIALS_MISSING, message="no Secret")
    before = bench.stored()
    await bench.collector().sweep()
    assert (bench.stored(), bench.deleted) == (before, [])
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    said = {
        "mark": "names cluster another-cluster", "mass deletion": "more than a tenth", "list of runs": "410 Expired",
        "limit": "more than 2 folders", "credentials": "no Secret",
        "object": "KeyError",
    }  # fmt: skip
    assert said[cause] in message
    assert measured("rlrun_garbage_sweeps_total", outcome="failed") == failed + 1


@pytest.mark.parametrize("kind", ["uploads", "tombstones"])
async def test_uploads_and_tombstones_count_toward_the_limit(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(garbage_collector, "LIMIT", 5)
    for number in range(6):
        if kind == "tombstones":
            bench.bury(f"{number:08x}-0000-4000-8000-000000000001")
        else:
            bench.store._s3.create_multipart_upload(Bucket=bench.root.bucket, Key=f"{bench.root.key}/team/x/{number}")
    await bench.collector().sweep()
    assert "more than 5 folders, unfinished uploads or tombstones" in caplog.text
    assert f"team/{GONE}/checkpoints/step-000010/a" in bench.stored()
    for upload in bench.store.uploads(bench.root):
        bench.store.abort_upload(bench.root.bucket, upload)


async def test_a_sweep_ends_with_the_lease(bench: Bench) -> None:
    bench.holds_lease = False
    before = bench.stored()
    with pytest.raises(LeaseLost):
        await bench.collector().sweep()
    assert bench.stored() == before


async def test_objects_of_namespaces_that_are_no_tenants_are_kept(bench: Bench) -> None:
    """The files of a namespace that is gone are in the bucket of the platform, and are deleted."""
    bench.tenancy_problem = lambda _: Problem(reason=Reason.NAMESPACE_NOT_TENANT, message="no tenant")
    await bench.collector().sweep()
    assert bench.deleted == []
    assert not any(name.startswith(f"team/{GONE}/") for name in bench.stored())


async def test_only_watched_namespaces_are_swept(bench: Bench) -> None:
    bench.watched = ["other"]
    bench.store.put_bytes(bench.layout(GONE, "other").run_json, b"{}")
    bench.bury(GONE, "other")
    before = bench.stored()
    await bench.collector().sweep()
    assert set(before) - set(bench.stored()) == {f"other/{GONE}/run.json"}
    listed = {request.kind.kind: request.namespace for request in bench.cluster.requests if request.verb is Verb.LIST}
    assert {listed.pop(kind) for kind in ("RLRun", "RLCheckpoint", "RLAdapter")} == {None}
    assert set(listed.values()) == {"other"}


@pytest.mark.parametrize("end", ["time limit", "shutdown"])
async def test_a_sweep_that_waits_for_the_cluster_ends(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    waiting = asyncio.Event()
    send = bench.cluster.send

    async def hang(request: KubeRequest) -> Obj:
        if request.kind.kind != "RLRun":
            return await send(request)
        waiting.set()
        return await asyncio.Future()

    monkeypatch.setattr(bench.cluster, "send", hang)
    if end == "time limit":
        monkeypatch.setattr(garbage_collector, "SWEEP_SECONDS", 2.0)
        await bench.collector().sweep()
        assert "a part of the sweep took more than 2 s" in caplog.text
    else:
        sweep = asyncio.create_task(bench.collector().sweep())
        await waiting.wait()
        sweep.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sweep
    async with asyncio.timeout(30):
        await asyncio.get_running_loop().shutdown_default_executor()
    assert bench.deleted == []


async def test_sweeps_are_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collector, "FIRST_SECONDS", 0.0)
    collector = bench.collector()
    collector._garbage = GarbageSettings.model_construct(interval="0s", older_than="0s", delete=False)
    sweeps = asyncio.Semaphore(0)

    async def sweep() -> None:
        sweeps.release()

    monkeypatch.setattr(collector, "sweep", sweep)
    running = asyncio.create_task(collector.run())
    for _ in range(3):
        await sweeps.acquire()
    running.cancel()
