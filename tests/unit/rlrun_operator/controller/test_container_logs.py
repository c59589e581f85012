"""Copies of logs: of pods that end, before they are deleted, and of terminating pods while their log hold waits."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from rlrun.constants import LOG_HOLD_CONTAINER
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.service.containers.log_hold import ENDED, KEPT
from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Unreachable
from rlrun_operator.controller import container_logs
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.container_logs import LIMIT_BYTES, LogCollector, TerminatingPodLogs
from rlrun_operator.planning.actions import LogCopy, Plan, RunFilesDeletion
from rlrun_operator.planning.ending import all_logs, crash_logs, unheld_logs
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.pod_failures import count_restarts

from tests.support.cluster_objects import pod, run_object, terminated
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import crash_container, end_orchestrator
from tests.support.informer_feed import InformerFeed
from tests.support.operator_world import SETTINGS, World
from tests.support.ports import claimed_ports
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


NODE_READY = [{"type": "PodReadyToStartContainers", "status": "True"}]
NODE_SILENT = [{"type": "ContainersReady", "status": "True"}]
LOG = "s3://rlrun/team/uid-1/logs/attempt-1/reverse-orchestrator-x/orchestrator.log"


class Kubelets(FakeCluster):
    """Some do not answer before `answering` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.answering = asyncio.Event()
        self.answering.set()

    async def log(self, request: KubeRequest) -> bytes:
        self.asked += 1
        text = await super().log(request)
        await self.answering.wait()
        return text


@dataclass
class Leaving:
    cluster: Kubelets = field(default_factory=Kubelets)
    artifacts: FakeArtifacts = field(default_factory=FakeArtifacts)
    variables: dict[str, str] | Problem | ApiError = field(default_factory=lambda: {"AWS_ACCESS_KEY_ID": "key"})

    def __post_init__(self) -> None:
        self.feed = InformerFeed(self.cluster)
        self.collector = LogCollector(self.cluster.kube, self.artifacts)
        self.logs = TerminatingPodLogs(self.collector, self.feed.informers, self._read_variables, SETTINGS)
        self.feed.informers.listeners.append(self.logs.on_change)

    async def see(self, *objects: Obj, text: str = "log") -> None:
        """The operator sees these objects, whose containers have written a text. All copies are made."""
        self.notice(*objects, text=text)
        await self.settle()

    def notice(self, *objects: Obj, text: str = "log") -> None:
        for obj in objects:
            self.cluster.put(obj)
            for container in obj["spec"].get("containers", ()):
                self.cluster.logs[f"{obj['metadata']['name']}/{container['name']}"] = text.encode()
        self.feed.deliver()

    async def settle(self) -> None:
        await until(lambda: all(task.done() for task in self.logs._tasks.values()))

    @property
    def kept(self) -> list[str]:
        return [text.decode() for text in self.artifacts.files.values()]

    async def _read_variables(self) -> dict[str, str] | Problem:
        if isinstance(self.variables, ApiError):
            raise self.variables
        return self.variables


@pytest.fixture
async def leaving() -> AsyncIterator[Leaving]:
    made = Leaving()
    yield made
    await made.logs.close()


def orchestrator(**more: Any) -> Obj:
    return pod("orchestrator", deleting=True, **more)


class Hold:
    """A pod's log hold in this process: containers end when the test says so."""

    def __init__(self) -> None:
        self.served = asyncio.Event()
        self.answers: list[bytes] = []
        self.has_ended = asyncio.Event()
        self.is_over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served.set()
        await self.has_ended.wait()
        writer.write(ENDED)
        over = asyncio.create_task(self.is_over.wait())
        answer = asyncio.create_task(reader.read(len(KEPT)))
        await asyncio.wait({over, answer}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            self.answers.append(answer.result())
        for task in (over, answer):
            task.cancel()
        writer.close()


@pytest.fixture
async def hold(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hold]:
    found = Hold()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    monkeypatch.setattr(container_logs, "LOG_HOLD_PORT", server.sockets[0].getsockname()[1])
    monkeypatch.setattr(container_logs, "RETRY_SECONDS", 0.01)
    async with server:
        yield found


def held(found: Obj) -> Obj:
    found["spec"]["initContainers"] = [{"name": LOG_HOLD_CONTAINER, "image": "img:1"}]
    found["status"] |= {
        "podIP": "127.0.0.1",
        "initContainerStatuses": [{"name": LOG_HOLD_CONTAINER, "restartCount": 0, "state": {"running": {}}}],
    }
    return found


async def test_a_pod_is_held_until_the_log_is_kept_with_its_end(leaving: Leaving, hold: Hold) -> None:
    await leaving.see(held(pod("orchestrator")))
    assert not hold.served.is_set()
    leaving.notice(held(orchestrator()), text="begun")
    await hold.served.wait()
    assert (leaving.cluster.asked, hold.answers) == (0, [])
    leaving.cluster.logs["reverse-orchestrator-x/orchestrator"] = b"begun, ended"
    hold.has_ended.set()
    await leaving.settle()
    await until(lambda: hold.answers == [KEPT])
    assert leaving.artifacts.files == {LOG: b"begun, ended"}
    await leaving.see(held(orchestrator(state=terminated(0))), text="other")
    assert (leaving.cluster.asked, leaving.kept) == (1, ["begun, ended"])


async def test_a_pod_of_a_job_that_ends_by_itself_leaves_its_log(leaving: Leaving, hold: Hold) -> None:
    hold.has_ended.set()
    ended = held(pod("orchestrator", state=terminated(3)))
    ended["spec"]["restartPolicy"] = "Never"
    await leaving.see(ended)
    await until(lambda: hold.answers == [KEPT])
    assert leaving.kept == ["log"]


async def test_a_container_that_restarts_in_place_ends_no_pod(leaving: Leaving, hold: Hold) -> None:
    await leaving.see(held(pod("trainer", state=terminated(3))))
    assert not hold.served.is_set()


@pytest.mark.parametrize("problem", ["S3", "credentials"])
async def test_a_pod_is_held_while_its_log_cannot_be_kept_until_its_time_is_over(
    leaving: Leaving, hold: Hold, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    if problem == "S3":
        leaving.artifacts.errors["put"] = Unreachable("no answer")
    else:
        leaving.variables = Problem(reason="S3SecretMissing", message="no Secret")
    hold.has_ended.set()
    leaving.notice(held(orchestrator()))
    await hold.served.wait()
    await asyncio.sleep(0)
    assert hold.answers == []
    with caplog.at_level(logging.WARNING):
        hold.is_over.set()
        await leaving.settle()
    assert leaving.kept == []
    assert "The logs of team/reverse-orchestrator-x were not copied before" in caplog.text


async def test_s3_that_answers_again_in_time_gets_the_log(leaving: Leaving, hold: Hold) -> None:
    leaving.artifacts.errors["put"] = Unreachable("no answer")
    hold.has_ended.set()
    leaving.notice(held(orchestrator()))
    await until(lambda: leaving.cluster.asked > 1)
    leaving.artifacts.errors.clear()
    await leaving.settle()
    await until(lambda: hold.answers == [KEPT])
    assert leaving.kept == ["log"]


async def test_the_next_operator_continues(leaving: Leaving, hold: Hold) -> None:
    leaving.notice(held(orchestrator()))
    await hold.served.wait()
    await leaving.logs.close()
    assert hold.answers == []
    hold.has_ended.set()
    following = TerminatingPodLogs(leaving.collector, leaving.feed.informers, leaving._read_variables, SETTINGS)
    leaving.logs = following
    following.begin(leaving.feed.informers.pods())
    await leaving.settle()
    assert leaving.kept == ["log"]
    await until(lambda: KEPT in hold.answers)


async def test_a_hold_that_is_still_starting_holds_its_pod(leaving: Leaving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_logs, "RETRY_SECONDS", 0.01)
    late = Hold()
    with claimed_ports(1) as ports:
        monkeypatch.setattr(container_logs, "LOG_HOLD_PORT", ports[0])
        leaving.notice(held(orchestrator()), text="begun")
        await asyncio.sleep(0.2)
        async with await asyncio.start_server(late.serve, "127.0.0.1", ports[0]):
            await until(late.served.is_set)
            leaving.cluster.logs["reverse-orchestrator-x/orchestrator"] = b"begun, ended"
            late.has_ended.set()
            await leaving.settle()
            await until(lambda: late.answers == [KEPT])
    assert leaving.kept == ["begun, ended"]


async def test_a_pod_whose_hold_does_not_answer_leaves_what_its_kubelet_has(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed_ports(1) as ports:
        monkeypatch.setattr(container_logs, "LOG_HOLD_PORT", ports[0])
        monkeypatch.setattr(container_logs, "CONNECT_SECONDS", 0.1)
        await leaving.see(held(orchestrator()))
    assert leaving.kept == ["log"]


async def test_a_pod_is_let_go_at_once_while_the_files_of_its_run_are_deleted(leaving: Leaving, hold: Hold) -> None:
    run = run_object()
    run["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["rlrun.dev/files"]}
    run["spec"]["artifactPolicy"] = "Delete"
    hold.has_ended.set()
    await leaving.see(run, held(orchestrator()))
    await until(lambda: hold.answers == [KEPT])
    assert leaving.kept == []


async def test_the_log_of_a_pod_of_a_deleted_run_is_kept(leaving: Leaving) -> None:
    await leaving.see(run_object())
    del leaving.cluster.objects["RLRun", "team", "reverse"]
    await leaving.see(orchestrator())
    assert leaving.kept == ["log"]


@pytest.mark.parametrize(
    ("policy", "uid", "kept"),
    [("Delete", "uid-1", []), ("Retain", "uid-1", ["log"]), ("Delete", "uid-2", ["log"])],
    ids=["with its files", "without", "another of its name"],
)
async def test_no_log_is_written_while_the_files_of_the_run_are_deleted(
    leaving: Leaving, policy: str, uid: str, kept: list[str]
) -> None:
    run = run_object()
    run["metadata"] |= {"uid": uid, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["rlrun.dev/files"]}
    run["spec"]["artifactPolicy"] = policy
    await leaving.see(run)
    await leaving.see(orchestrator())
    assert leaving.kept == kept


async def test_a_node_is_asked_for_no_log_until_it_reports(leaving: Leaving) -> None:
    await leaving.see(orchestrator(conditions=NODE_SILENT))
    assert leaving.cluster.asked == 0
    await leaving.see(orchestrator(conditions=NODE_READY))
    assert leaving.kept == ["log"]


async def test_a_pod_leaves_its_log_once(leaving: Leaving) -> None:
    for attempt in range(1, 4):
        await leaving.see(orchestrator(attempt=attempt))
    assert leaving.cluster.asked == 1


async def test_a_copy_that_failed_is_made_at_the_next_event(leaving: Leaving) -> None:
    leaving.artifacts.errors["put"] = Unreachable("no answer")
    await leaving.see(orchestrator(state=terminated(0)))
    assert leaving.kept == []
    leaving.artifacts.errors.clear()
    await leaving.see(orchestrator(state=terminated(0), phase="Succeeded"))
    assert leaving.kept == ["log"]


async def test_the_log_of_a_pod_that_is_not_stored_whole_is_kept(leaving: Leaving) -> None:
    large = orchestrator()
    large["metadata"]["annotations"] = {"notes": "x" * 300_000}
    await leaving.see(large)
    assert leaving.kept == ["log"]


async def test_a_pod_that_was_leaving_before_the_first_event_leaves_its_log(leaving: Leaving) -> None:
    await leaving.see(pod("orchestrator"))
    leaving.feed.informers.listeners.clear()
    leaving.notice(orchestrator())
    leaving.logs.begin(leaving.feed.informers.pods())
    await leaving.settle()
    assert leaving.kept == ["log"]


async def test_a_pod_that_is_gone_is_forgotten(leaving: Leaving) -> None:
    await leaving.see(orchestrator())
    assert len(leaving.logs._tasks) == 1
    del leaving.cluster.objects["Pod", "team", "reverse-orchestrator-x"]
    await leaving.see()
    assert leaving.logs._tasks == {}


async def test_a_pod_that_is_gone_before_its_log_is_copied_is_forgotten(leaving: Leaving) -> None:
    leaving.cluster.answering.clear()
    leaving.notice(orchestrator())
    del leaving.cluster.objects["Pod", "team", "reverse-orchestrator-x"]
    leaving.notice()
    assert len(leaving.logs._tasks) == 1, "the copy continues"
    leaving.cluster.answering.set()
    await until(lambda: leaving.logs._tasks == {})


@pytest.mark.parametrize(
    "variables", [Problem(reason="S3SecretMissing", message="no Secret"), ApiError(500, "InternalError", "etcd")]
)
async def test_without_credentials_of_s3_no_log_is_copied(leaving: Leaving, variables: Problem | ApiError) -> None:
    leaving.variables = variables
    await leaving.see(orchestrator())
    assert leaving.cluster.asked == 0


async def test_a_namespace_cannot_take_all_places(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(container_logs, "PODS", 3)
    few = TerminatingPodLogs(leaving.collector, leaving.feed.informers, leaving._read_variables, SETTINGS)
    leaving.logs, leaving.feed.informers.listeners[:] = few, [few.on_change]
    leaving.cluster.answering.clear()
    with caplog.at_level(logging.WARNING):
        leaving.notice(*(orchestrator(uid=f"p{number}") for number in range(4)))
    assert len(few._tasks) == 2
    assert "the logs of team/reverse-orchestrator-p3 are copied at" in caplog.text
    other = orchestrator(uid="other")
    other["metadata"]["namespace"] = "other"
    leaving.notice(other)
    assert len(few._tasks) == 3
    leaving.cluster.answering.set()
    await leaving.settle()
    assert len(leaving.kept) == 3
    await leaving.see(orchestrator(uid="p4"))
    assert len(leaving.kept) == 4


async def test_copies_end_with_the_operator(leaving: Leaving) -> None:
    leaving.cluster.answering.clear()
    leaving.notice(orchestrator())
    await until(lambda: leaving.cluster.asked == 1)
    await leaving.logs.close()
    leaving.cluster.answering.set()
    await leaving.see(orchestrator(state=terminated(0)))
    assert leaving.kept == []
