"""S3 that accepts connections and answers nothing, or too late: what the operator goes on with, and what waits."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import MAX_MANIFEST_BYTES, ArtifactKind, FileEntry, Manifest
from rlrun.storage.store import BodyInterrupted, Store, Unreachable
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.actions import RunFilesDeletion
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.runtime.circuit_breaker import BreakerLimits, CircuitBreaker
from rlrun_operator.runtime.leader_election import LeaseLost
from rlrun_operator.runtime.metrics import REGISTRY
from rlrun_operator.runtime.work_queue import WorkQueue, work
from rlrun_operator.storage.artifact_store import ArtifactStore, CircuitOpen, Installation
from rlrun_operator.storage.store_call import CallLimits, StoreTimeout

from tests.support.clocks import Clock
from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.fake_poller import FakePoller
from tests.support.operator_world import SETTINGS
from tests.support.stub_s3 import BUCKET, SIZE, StubS3, stub_s3
from tests.support.waiting import SECONDS, until

WAITING_RUNS = 20
WORKERS = 8
NO_PROBES = BreakerLimits(slow_seconds=0.1, first_pause_seconds=math.inf, longest_pause_seconds=math.inf)
PROBES_AT_ONCE = BreakerLimits(slow_seconds=0.1, first_pause_seconds=0.0)
SHORT = CallLimits(silence_seconds=1.5)
LAYOUT = RunLayout.of(BUCKET, "", "team", "uid-1")


@pytest.fixture
async def s3() -> AsyncIterator[StubS3]:
    async with stub_s3() as found:
        yield found


@contextmanager
def operator_s3(
    s3: StubS3,
    limits: CallLimits = SHORT,
    breaker: BreakerLimits = NO_PROBES,
    may_write: Callable[[], bool] = lambda: True,
    threads: int = WORKERS,
) -> Iterator[ArtifactStore]:
    artifacts = ArtifactStore(threads, may_write, limits=limits, make_breaker=lambda: CircuitBreaker(breaker))
    artifacts.installation, artifacts._marked_until = Installation(S3Uri("rlrun", ""), "this-cluster"), math.inf
    # Making a client takes longer than the time limits of these tests.
    artifacts._store(s3.environment)
    try:
        yield artifacts
    finally:
        artifacts.close()


def breaker_open(s3: StubS3) -> float | None:
    return REGISTRY.get_sample_value("rlrun_s3_breaker_open", {"endpoint": s3.endpoint})


def calls(outcome: str) -> float:
    return REGISTRY.get_sample_value("rlrun_s3_calls_total", {"outcome": outcome}) or 0.0


# --- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_call_ends_although_s3_never_answers(s3: StubS3) -> None:
    s3.silence()
    with operator_s3(s3) as artifacts:
        async with asyncio.timeout(SECONDS):
            problem = await artifacts.check(s3.environment, BUCKET)
        assert problem
        assert problem.reason == "S3Unreachable"
        assert s3.endpoint in problem.message
        assert breaker_open(s3) == 1


@pytest.mark.slow
async def test_later_calls_fail_at_once_with_one_message_and_without_a_request(s3: StubS3) -> None:
    s3.silence()
    with operator_s3(s3) as artifacts:
        first = await artifacts.check(s3.environment, BUCKET)
        asked, refused = len(s3.requests), calls("refused")
        later: list[Callable[[], Awaitable[Any]]] = [
            lambda: artifacts.list(s3.environment, LAYOUT, {}),
            lambda: artifacts.verify(s3.environment, str(LAYOUT.checkpoint(1))),
            lambda: artifacts.put(s3.environment, str(LAYOUT.root / "log"), b"text"),
            lambda: artifacts.delete(s3.environment, str(LAYOUT.checkpoint(1))),
            lambda: artifacts.purge(s3.environment, RunFilesDeletion(str(LAYOUT.root), ())),
        ]
        for call in later:
            with pytest.raises(CircuitOpen) as caught:
                await call()
            assert caught.value.problem == first
        assert await artifacts.check(s3.environment, BUCKET) == first
        assert len(s3.requests) == asked
        assert calls("refused") == refused + len(later) + 1


@pytest.mark.slow
async def test_the_first_answer_after_an_outage_ends_it(s3: StubS3) -> None:
    s3.silence()
    with operator_s3(s3, breaker=PROBES_AT_ONCE) as artifacts:
        assert await artifacts.check(s3.environment, BUCKET)
        s3.answer()
        # A check that failed is not remembered longer than S3 is away.
        assert await artifacts.check(s3.environment, BUCKET) is None
        assert breaker_open(s3) == 0
        assert await artifacts.list(s3.environment, LAYOUT, {}) == []


@pytest.mark.slow
async def test_a_rejected_request_is_an_answer(s3: StubS3) -> None:
    with operator_s3(s3) as artifacts:
        for _ in range(5):
            assert await artifacts.verify(s3.environment, str(LAYOUT.checkpoint(1)))
        assert breaker_open(s3) == 0


@pytest.mark.slow
async def test_another_endpoint_is_not_affected(s3: StubS3) -> None:
    async with stub_s3() as other:
        s3.silence()
        with operator_s3(s3) as artifacts:
            assert await artifacts.check(s3.environment, BUCKET)
            artifacts._store(other.environment)
            assert await artifacts.check(other.environment, BUCKET) is None
            assert (breaker_open(s3), breaker_open(other)) == (1, 0)


@pytest.mark.slow
async def test_calls_that_s3_answers_are_no_outage_however_long_they_take(s3: StubS3) -> None:
    """One run with very many files must not keep S3 from all others."""
    is_over = threading.Event()

    def check_again_and_again(store: Store) -> None:
        while not is_over.is_set():
            store.check(S3Uri(BUCKET, ""))

    with operator_s3(s3, CallLimits(silence_seconds=30.0, total_seconds=0.5)) as artifacts:
        with pytest.raises(StoreTimeout):
            await artifacts._call(s3.environment, check_again_and_again)
        is_over.set()
        assert breaker_open(s3) == 0
        assert await artifacts.check(s3.environment, BUCKET) is None


@pytest.mark.slow
async def test_a_cancelled_probe_leaves_the_next_one_to_another_call(s3: StubS3) -> None:
    s3.silence()
    with operator_s3(s3, breaker=PROBES_AT_ONCE) as artifacts:
        assert await artifacts.check(s3.environment, BUCKET)
        asked = len(s3.requests)
        probe = asyncio.create_task(artifacts.check(s3.environment, BUCKET))
        await until(lambda: len(s3.requests) > asked)
        probe.cancel()
        await asyncio.wait({probe})
        s3.answer()
        assert await artifacts.check(s3.environment, BUCKET) is None


# --- objects of tenants ----------------------------------------------------------------------------------------------

MANIFEST_KEY = "team/uid-1/checkpoints/step-000001/manifest.json"


@pytest.mark.parametrize("listed", [MAX_MANIFEST_BYTES + 1, 100])
@pytest.mark.slow
async def test_a_manifest_of_any_size_is_not_read_into_the_operator(s3: StubS3, listed: int) -> None:
    """A trainer role may write its manifest, also after it was listed."""
    s3.objects[MANIFEST_KEY] = b"[" * (MAX_MANIFEST_BYTES + 1)
    s3.sizes[MANIFEST_KEY] = listed
    with operator_s3(s3, CallLimits()) as artifacts:
        [found] = await artifacts.list(s3.environment, LAYOUT, {})
        assert found.manifest is None
        assert "larger than the limit of 4,194,304 bytes" in (found.problem or "")
        refused = await artifacts.verify(s3.environment, found.uri)
        assert isinstance(refused, Problem)
        assert refused.message == found.problem
        assert s3.requests.count("get") == (0 if listed > MAX_MANIFEST_BYTES else 2)
        assert breaker_open(s3) == 0


@pytest.mark.slow
async def test_of_a_large_manifest_the_operator_keeps_what_objects_show(s3: StubS3) -> None:
    files = [FileEntry(name=f"{number}", size=SIZE, sha256="0" * 64) for number in range(1000)]
    manifest = Manifest(
        kind=ArtifactKind.checkpoint,
        files=files,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        run_name="r" * 1000,
        step=1,
        policy_version=7,
        details={"reward": 0.5, "more": [[]] * 40_000},
    )
    s3.objects[MANIFEST_KEY] = manifest.model_dump_json(by_alias=True).encode()
    s3.keys |= {MANIFEST_KEY.replace("manifest.json", file.name) for file in files}
    with operator_s3(s3, CallLimits()) as artifacts:
        [found] = await artifacts.list(s3.environment, LAYOUT, {})
    assert found.problem is None
    assert found.manifest
    assert (found.manifest.size, found.manifest.policy_version) == (1000 * SIZE, 7)
    assert found.manifest.details == {"reward": 0.5}
    assert len(found.manifest.model_dump_json()) < 1000


@pytest.mark.slow
async def test_an_object_that_does_not_arrive_is_no_outage(s3: StubS3) -> None:
    s3.objects[MANIFEST_KEY] = b"{" + b" " * 100
    s3.stalled = frozenset({MANIFEST_KEY})
    with operator_s3(s3, CallLimits(silence_seconds=1.0)) as artifacts:
        for _ in range(3):
            with pytest.raises(StoreTimeout, match="in the middle of an object"):
                await artifacts.list(s3.environment, LAYOUT, {})
        assert breaker_open(s3) == 0
        assert await artifacts.check(s3.environment, BUCKET) is None


@pytest.mark.slow
async def test_an_object_whose_connection_breaks_is_no_outage(s3: StubS3) -> None:
    def read(store: Store) -> bytes:
        raise BodyInterrupted("a part")

    with operator_s3(s3, CallLimits()) as artifacts:
        for _ in range(5):
            with pytest.raises(BodyInterrupted):
                await artifacts._call(s3.environment, read)
        assert breaker_open(s3) == 0


# --- late threads ----------------------------------------------------------------------------------------------------


def many_files(s3: StubS3) -> int:
    """Put more files into a checkpoint than one request deletes."""
    files = {f"team/uid-1/checkpoints/step-000001/shard-{number}" for number in range(600)}
    s3.keys |= files
    return len(files)


async def end_of_threads(artifacts: ArtifactStore) -> None:
    await asyncio.wait_for(asyncio.to_thread(artifacts._pool.shutdown), SECONDS)


@pytest.mark.slow
async def test_all_files_are_deleted_in_several_requests(s3: StubS3) -> None:
    many_files(s3)
    with operator_s3(s3, CallLimits()) as artifacts:
        await artifacts.delete(s3.environment, str(LAYOUT.checkpoint(1)))
    assert s3.keys == set()
    assert s3.requests.count("delete") >= 3


@pytest.mark.slow
async def test_a_deletion_that_is_given_up_sends_no_further_request(s3: StubS3) -> None:
    many_files(s3)
    s3.silence("delete")
    # On a busy machine the list before the deletion takes longer than SHORT allows.
    with operator_s3(s3, CallLimits(silence_seconds=3.0)) as artifacts:
        with pytest.raises(Unreachable):
            await artifacts.delete(s3.environment, str(LAYOUT.checkpoint(1)))
        s3.answer()
        await end_of_threads(artifacts)
        assert s3.requests.count("delete") == 1


@pytest.mark.slow
async def test_a_deletion_whose_caller_is_cancelled_sends_no_further_request(s3: StubS3) -> None:
    many_files(s3)
    s3.silence("delete")
    with operator_s3(s3, CallLimits()) as artifacts:
        deletion = asyncio.create_task(artifacts.delete(s3.environment, str(LAYOUT.checkpoint(1))))
        await until(lambda: "delete" in s3.requests)
        deletion.cancel()
        await asyncio.wait({deletion})
        s3.answer()
        await end_of_threads(artifacts)
        assert s3.requests.count("delete") == 1


@pytest.mark.slow
async def test_a_deletion_stops_at_the_loss_of_the_lease(s3: StubS3) -> None:
    files = many_files(s3)
    with operator_s3(s3, CallLimits(), may_write=lambda: "delete" not in s3.requests) as artifacts:
        with pytest.raises(LeaseLost):
            await artifacts.delete(s3.environment, str(LAYOUT.checkpoint(1)))
        await end_of_threads(artifacts)
    assert s3.requests.count("delete") == 1
    assert len(s3.keys) == files - 250
    assert breaker_open(s3) == 0


@pytest.mark.slow
async def test_a_lost_deletion_is_not_repeated_after_the_loss_of_the_lease(s3: StubS3) -> None:
    files = many_files(s3)
    s3.dropped = {"delete"}
    with (
        operator_s3(s3, CallLimits(), may_write=lambda: "delete" not in s3.requests) as artifacts,
        pytest.raises(LeaseLost),
    ):
        await artifacts.delete(s3.environment, str(LAYOUT.checkpoint(1)))
    assert s3.requests.count("delete") == 1
    assert len(s3.keys) == files


@pytest.mark.slow
async def test_threads_that_hang_do_not_hold_up_other_work_of_the_process(s3: StubS3) -> None:
    s3.silence()
    with operator_s3(s3, threads=2) as artifacts:
        waiting = [asyncio.create_task(artifacts.check(s3.environment, BUCKET)) for _ in range(100)]
        await until(lambda: len(s3.requests) == 2)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), SECONDS) == "done"
        assert all(await asyncio.wait_for(asyncio.gather(*waiting), SECONDS))
        assert len(s3.requests) == 2


# --- the operator ----------------------------------------------------------------------------------------------------


class Operator:
    """An operator with its queue and workers, on a cluster in memory and an S3 over HTTP."""

    def __init__(self, s3: StubS3, artifacts: ArtifactStore, *objects: Obj) -> None:
        self.cluster = FakeCluster(*objects, model_object(), source_secret())
        self.clock = Clock()
        self.poller = FakePoller()
        settings = SETTINGS.s3.model_copy(update={"endpoint": s3.endpoint})
        self.settings: OperatorSettings = SETTINGS.model_copy(update={"s3": settings})
        observer = Observer(RunObjects(self.cluster), artifacts, self.poller, self.settings)
        applier = Applier(self.cluster.kube, artifacts)
        self.reconciler = Reconciler(observer, applier, self.settings, self.clock)
        self.queue: WorkQueue[RunKey] = WorkQueue()
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._workers = [asyncio.create_task(work(self.queue, self.reconciler.reconcile)) for _ in range(WORKERS)]

    async def stop(self) -> None:
        pending = set(self._workers)
        while pending:
            # `wait_for` of Python 3.11 loses a cancellation that comes together with the end of its task.
            for worker in pending:
                worker.cancel()
            _, pending = await asyncio.wait(pending, timeout=0.1)
        self.queue.close()

    def status(self, name: str) -> Obj:
        found = self.cluster.held("RLRun", name)
        return dict(found.get("status") or {})

    def reason(self, name: str, condition: str) -> str | None:
        conditions = self.status(name).get("conditions") or []
        return next((c["reason"] for c in conditions if c["type"] == condition), None)

    def change(self, name: str, **spec: Any) -> None:
        run = self.cluster.held("RLRun", name)
        metadata = {**run["metadata"], "generation": run["metadata"]["generation"] + 1}
        self.cluster.put({**run, "spec": {**run["spec"], **spec}, "metadata": metadata})
        self.queue.add(RunKey("team", name))


def stop(operator: Operator) -> None:
    operator.change("reverse", stop=True)


def suspend(operator: Operator) -> None:
    operator.change("reverse", suspend=True)


def exceed_deadline(operator: Operator) -> None:
    operator.clock.advance(1001)
    operator.queue.add(RunKey("team", "reverse"))


def lose_replica_set(operator: Operator) -> None:
    del operator.cluster.objects["ReplicaSet", "team", "reverse-trainer"]
    operator.queue.add(RunKey("team", "reverse"))


def phase(expected: str) -> Callable[[Operator], bool]:
    return lambda operator: operator.status("reverse").get("phase") == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "is_handled"),
    [
        (stop, phase("Stopped")),
        (suspend, phase("Suspended")),
        (exceed_deadline, phase("Failed")),
        (lose_replica_set, lambda operator: operator.cluster.find("ReplicaSet", "reverse-trainer") is not None),
    ],
)
async def test_a_run_is_handled_while_many_others_wait_for_an_s3_that_answers_nothing(
    s3: StubS3, change: Callable[[Operator], None], is_handled: Callable[[Operator], bool]
) -> None:
    waiting = [f"waiting-{number}" for number in range(WAITING_RUNS)]
    runs = [run_object(name, uid=f"uid-{name}") for name in waiting]
    # So many threads that requests are limited by the breaker alone.
    with operator_s3(s3, threads=64) as artifacts:
        operator = Operator(s3, artifacts, run_object(activeDeadlineSeconds=1000))
        for _ in range(2):
            await operator.reconciler.reconcile(RunKey("team", "reverse"))
        step_kubelet(operator.cluster)
        await operator.reconciler.reconcile(RunKey("team", "reverse"))
        assert operator.reason("reverse", "ArtifactsListed") == "Listed"

        s3.silence()
        s3.requests.clear()
        artifacts._checks.clear()
        for run in runs:
            operator.cluster.put(run)
            operator.queue.add(RunKey("team", run["metadata"]["name"]))
        operator.start()
        try:
            await until(lambda: len(s3.requests) > 0)
            change(operator)
            await until(lambda: is_handled(operator))
            # Only those asked S3 that were under way when its silence became known: not the run itself.
            assert len(s3.requests) <= WORKERS
            await until(lambda: all(operator.reason(name, "Validated") == "S3Unreachable" for name in waiting))
            assert len(s3.requests) <= WORKERS
            # What S3 holds is unknown, not nothing.
            await until(lambda: operator.reason("reverse", "ArtifactsListed") == "S3Unreachable")
        finally:
            await operator.stop()


@pytest.mark.slow
async def test_files_and_finalizer_of_a_deleted_run_wait_for_s3(s3: StubS3) -> None:
    with operator_s3(s3, breaker=PROBES_AT_ONCE) as artifacts:
        operator = Operator(s3, artifacts, run_object(artifactPolicy="Delete", stop=True))
        key = RunKey("team", "reverse")
        for _ in range(2):
            await operator.reconciler.reconcile(key)
        s3.keys |= {"team/uid-1/run.json", "team/uid-2/run.json"}
        operator.cluster.request_deletion(operator.cluster.held("RLRun", "reverse"))
        s3.silence()
        for _ in range(3):
            with pytest.raises(Unreachable):
                await operator.reconciler.reconcile(key)
        assert operator.cluster.find("RLRun", "reverse")
        s3.answer()
        await operator.reconciler.reconcile(key)
        assert operator.cluster.find("RLRun", "reverse") is None
        assert s3.keys == {"team/uid-2/run.json", "rlrun.deleted/team/uid-1/run.json"}
