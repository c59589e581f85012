"""Logs of pods that go, and of containers that crash, are kept in S3 within bounds, and are in nobody's way."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from rlrun.constants import LOG_HOLD_CONTAINER
from rlrun.kube.errors import ApiError
from rlrun.kube.pods import Pod
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Unreachable
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.container_logs import LIMIT_BYTES, LogCollector
from rlrun_operator.planning.actions import LogCopy, Plan, RunFilesDeletion
from rlrun_operator.planning.ending import all_logs, crash_logs, unheld_logs
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.pod_failures import count_restarts

from tests.support.cluster_objects import pod, terminated
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import crash_container, end_orchestrator
from tests.support.operator_world import World
from tests.support.waiting import until

LAYOUT = RunLayout.of("rlrun", "", "team", "uid-1")
LOGS = "s3://rlrun/team/uid-1/logs"
VARIABLES = {"AWS_ACCESS_KEY_ID": "key"}


def speak(world: World) -> None:
    """Every container of every pod has written something."""
    for obj in world.cluster.all("Pod"):
        for container in obj["spec"]["containers"]:
            name = f"{obj['metadata']['name']}/{container['name']}"
            world.cluster.logs[name] = f"log of {name}".encode()


@pytest.mark.parametrize("change", [{"stop": True}, {"suspend": True}])
async def test_all_logs_are_kept_before_the_pods_go(world: World, change: dict[str, Any]) -> None:
    await world.start()
    speak(world)
    await world.change(**change)
    assert world.cluster.all("ReplicaSet") == []
    assert {uri: text.decode() for uri, text in world.artifacts.files.items()} == {
        f"{LOGS}/attempt-1/{name}.log": f"log of {name}"
        for name in (
            "reverse-trainer-0/trainer",
            "reverse-inference-0/vllm",
            "reverse-inference-0/sidecar",
            "reverse-env-0-0/environment",
            "reverse-orchestrator-a1-0/orchestrator",
        )
    }


async def test_logs_of_a_run_that_completed_are_kept(world: World) -> None:
    await world.start()
    speak(world)
    last = RunStatus(phase=RunPhase.completed, step=10, max_steps=10)
    end_orchestrator(world.cluster, 0, last.model_dump_json(by_alias=True))
    assert await world.phase() == "Completed"
    assert len(world.artifacts.files) == 5


async def test_log_of_a_crash_is_kept_at_once_and_once(world: World) -> None:
    await world.start()
    crash_container(world.cluster, "reverse-trainer-0")
    world.cluster.logs["reverse-trainer-0/trainer.previous"] = b"Traceback"
    await world.reconcile()
    kept = f"{LOGS}/attempt-1/reverse-trainer-0/trainer.previous.log"
    assert world.artifacts.files == {kept: b"Traceback"}
    world.artifacts.files.clear()
    await world.reconcile(2)
    assert world.artifacts.files == {}


async def test_logs_of_the_second_attempt_lie_beside_those_of_the_first(make_world: Callable[..., World]) -> None:
    world = make_world()
    for suspend in (True, False, True):
        if suspend:
            await world.start()
            speak(world)
        await world.change(suspend=suspend)
    assert {uri.split("/")[-3] for uri in world.artifacts.files} == {"attempt-1", "attempt-2"}


async def test_the_finalizer_stays_until_the_last_pod_with_a_log_is_gone(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    pod = next(p for p in world.cluster.all("Pod") if "orchestrator" in p["metadata"]["name"])
    for other in world.cluster.all("Pod"):
        if other is not pod:
            del world.cluster.objects[("Pod", "team", other["metadata"]["name"])]
    world.cluster.objects[("Pod", "team", pod["metadata"]["name"])]["status"]["phase"] = "Succeeded"
    run = world.cluster.objects[("RLRun", "team", "reverse")]
    run["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for obj in world.cluster.all("ReplicaSet", "Job"):
        del world.cluster.objects[(obj["kind"], "team", obj["metadata"]["name"])]

    await world.reconcile()
    assert world.run["metadata"]["finalizers"], "an ended pod still has a log, and somebody may keep it yet"

    world.cluster.objects.pop(("Pod", "team", pod["metadata"]["name"]), None)
    await world.reconcile()
    assert not world.cluster.find("RLRun", "reverse") or not world.run["metadata"]["finalizers"]


def test_the_logs_that_users_read_are_copied_before_those_of_init_containers() -> None:
    inference = pod("inference")
    inference["spec"]["initContainers"] = [{"name": LOG_HOLD_CONTAINER}, {"name": "fetch-model"}]
    inference["spec"]["containers"].append({"name": "istio-proxy"})
    assert [c.container for c in all_logs(LAYOUT, Pod(inference))] == ["vllm", "fetch-model"]


def test_only_pods_that_no_log_hold_keeps_are_copied_before_they_are_deleted() -> None:
    held = pod("trainer")
    held["status"]["podIP"] = "10.0.0.1"
    held["status"]["initContainerStatuses"] = [{"name": LOG_HOLD_CONTAINER, "state": {"running": {}}}]
    assert unheld_logs(LAYOUT, [Pod(held)]) == []
    held["status"]["initContainerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
    assert [c.container for c in unheld_logs(LAYOUT, [Pod(held)])] == ["trainer"]


def test_crash_logs_are_those_of_the_crashed_container_instance() -> None:
    again = count_restarts([], [Pod(pod("trainer", restarts=1, last=terminated(1)))]).crashes
    over = count_restarts([], [Pod(pod("orchestrator", phase="Failed", state=terminated(1)))]).crashes
    assert [(c.uri, c.previous) for c in crash_logs(LAYOUT, 2, [*again, *over])] == [
        (f"{LOGS}/attempt-2/reverse-trainer-x/trainer.previous.log", True),
        (f"{LOGS}/attempt-2/reverse-orchestrator-x/orchestrator.log", False),
    ]


def copies(count: int) -> list[LogCopy]:
    return [LogCopy(f"pod-{i}", "main", f"s3://rlrun/{i}.log") for i in range(count)]


class Slow(FakeCluster):
    """Some kubelets never answer."""

    busy = 0
    busiest = 0

    async def log(self, request: KubeRequest) -> bytes:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            if request.name == "pod-0":
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            return b"text"
        finally:
            self.busy -= 1


async def test_silent_kubelets_delay_no_other_request() -> None:
    artifacts, cluster = FakeArtifacts(), Slow()
    async with asyncio.timeout(60):
        await LogCollector(cluster.kube, artifacts, seconds=0.2).collect("team", VARIABLES, copies(12))
    assert len(artifacts.files) == 11
    assert cluster.busiest == 4


async def test_copies_of_one_namespace_that_hang_leave_slots_for_others() -> None:
    names = ("first", "second")
    hung = {name: [LogCopy("pod-0", f"{i}", f"s3://rlrun/{name}/{i}.log") for i in range(12)] for name in names}
    artifacts, cluster = FakeArtifacts(), Slow()
    logs = LogCollector(cluster.kube, artifacts, seconds=3600)
    hanging = [asyncio.create_task(logs.collect(name, VARIABLES, hung[name])) for name in names]
    await until(lambda: cluster.busy == 6)
    async with asyncio.timeout(60):
        await logs.collect("team", VARIABLES, copies(12)[1:])
    assert len(artifacts.files) == 11
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert cluster.busy == 0


@pytest.mark.parametrize("error", [ApiError(500, "InternalError", "kubelet"), OSError("reset")])
async def test_a_failed_log_copy_does_not_stop_the_others(error: Exception) -> None:
    class Failing(FakeCluster):
        async def log(self, request: KubeRequest) -> bytes:
            if request.name == "pod-0":
                raise error
            return b"text"

    artifacts = FakeArtifacts()
    await LogCollector(Failing().kube, artifacts).collect("team", VARIABLES, copies(2))
    assert list(artifacts.files) == ["s3://rlrun/1.log"]


async def test_s3_outage_delays_no_other_request(world: World) -> None:
    await world.start()
    speak(world)
    world.artifacts.errors["put"] = Unreachable("no answer")
    await world.change(stop=True)
    assert world.status["phase"] == "Stopped"


async def test_only_the_end_of_a_long_log_is_kept() -> None:
    cluster, artifacts = FakeCluster(), FakeArtifacts()
    cluster.logs["pod-0/main"] = b"x" * LIMIT_BYTES + b"the end"
    await LogCollector(cluster.kube, artifacts).collect("team", VARIABLES, copies(1))
    (kept,) = artifacts.files.values()
    assert len(kept) == LIMIT_BYTES
    assert kept.endswith(b"the end")


class Waiting(FakeArtifacts):
    """S3 that takes no file before `answering` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answering = asyncio.Event()
        self.writing = 0

    async def put(self, variables: Mapping[str, str], uri: str, data: bytes) -> None:
        self.writing += 1
        await self.answering.wait()
        await super().put(variables, uri, data)


async def test_a_late_copy_does_not_replace_a_newer_one() -> None:
    cluster, artifacts = FakeCluster(), Waiting()
    logs = LogCollector(cluster.kube, artifacts)
    (first,) = copies(1)
    cluster.logs["pod-0/main"] = b"first"
    early = asyncio.create_task(logs.collect("team", VARIABLES, [first]))
    await until(lambda: artifacts.writing == 1)
    cluster.logs["pod-0/main"] = b"complete"
    late = asyncio.create_task(logs.collect("team", VARIABLES, [first]))
    await asyncio.sleep(0)
    artifacts.answering.set()
    assert [*await early, *await late] == [first, first]
    assert artifacts.files == {first.uri: b"complete"}


async def test_the_files_of_a_run_are_deleted_after_the_copies_of_its_logs() -> None:
    cluster, artifacts = FakeCluster(), Waiting()
    logs = LogCollector(cluster.kube, artifacts)
    made = [LogCopy("pod-0", "main", f"s3://rlrun/team/{uid}/log") for uid in ("uid-1", "uid-10")]
    cluster.logs["pod-0/main"] = b"log"
    collecting = asyncio.create_task(logs.collect("team", VARIABLES, made))
    await until(lambda: artifacts.writing == 2)
    settling = asyncio.create_task(logs.settle("s3://rlrun/team/uid-1"))
    await asyncio.sleep(0.01)
    assert not settling.done()
    await logs.settle("s3://rlrun/team/uid-2")
    artifacts.answering.set()
    await settling
    assert await collecting == made
    await logs.settle("s3://rlrun/team/uid-1")


async def test_a_purge_waits_for_the_copies_of_the_logs(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    observation = RunObservation(world.run, s3_variables=VARIABLES)
    applier, settled = Applier(world.cluster.kube, world.artifacts), []

    async def settle(root: str) -> None:
        settled.append((root, len(world.artifacts.purged)))

    applier.logs.settle = settle  # type: ignore[method-assign]
    await applier.apply(observation, Plan(purge=RunFilesDeletion("s3://rlrun/team/uid-1")), world.clock.now)
    assert settled == [("s3://rlrun/team/uid-1", 0)]
    assert len(world.artifacts.purged) == 1
