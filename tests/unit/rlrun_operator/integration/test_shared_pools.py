"""Runs that share the trainer and the engines of a pool: who joins, which orders it gets, and when it ends."""

import asyncio
import hashlib
import json
from datetime import timedelta

import pytest
from rlrun.api.usage import UsageRecord
from rlrun.constants import REFERENCES_ANNOTATION, ExitCode, Reason
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj
from rlrun.kube.requests import Verb
from rlrun.protocol import signed_text
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import PoolOrder
from rlrun.protocol.storage_access import StorageGrant
from rlrun.service.errors import ServiceUnavailable
from rlrun_operator.resources.access.run_tokens import run_token
from rlrun_operator.serving import observer

from tests.support.cluster_objects import STORAGE_KEY, checkpoint_object, terminated
from tests.support.expectations import present
from tests.support.fake_artifacts import manifest
from tests.support.fake_kubelet import crash_container, step_kubelet
from tests.support.fake_poller import training
from tests.support.shared_pools import MODEL, TOKEN_KEY, SharedRuns, shared_model
from tests.unit.chart.test_render import READ_BY_NAME

POOL = ["Deployment", "Deployment", "NetworkPolicy", "Secret", "Service", "Service", "ServiceAccount"]


@pytest.fixture
def runs() -> SharedRuns:
    return SharedRuns()


def pool(runs: SharedRuns, name: str = "a") -> str:
    return present(runs.pool_of(name))


def deployments(runs: SharedRuns) -> list[str]:
    return [str(obj["metadata"]["name"]) for obj in runs.cluster.all("Deployment")]


def break_pull(runs: SharedRuns, pod: Obj) -> None:
    """The image of the pod's first container does not exist."""
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    pod["status"]["containerStatuses"][0]["state"] = waiting
    runs.cluster.put(pod)


async def train(runs: SharedRuns) -> None:
    """The runs make their first step."""
    runs.world.poller.answer, runs.world.poller.watches = training(), True
    await runs.settle()


async def start_without_engines(runs: SharedRuns, *names: str) -> None:
    """The runs' own pods are ready, and those of the pool run, but are not ready."""
    await runs.arrive(*names)
    for _ in range(2):
        runs.start_pods(ready=False)
        await runs.settle()


def leave_unscheduled(runs: SharedRuns, pod: Obj) -> None:
    """No node has room for the pod."""
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    runs.cluster.put({**pod, "status": {"phase": "Pending", "conditions": [condition]}})


async def test_runs_of_a_model_share_one_pool_and_have_no_trainer_and_engines_of_their_own(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    assert pool(runs, "a") == pool(runs, "b")
    assert runs.pool_objects(pool(runs)) == POOL
    assert deployments(runs) == [pool(runs), f"{pool(runs)}-trainer"]
    assert [deployment["spec"]["replicas"] for deployment in runs.cluster.all("Deployment")] == [1, 1]
    names = {o["metadata"]["name"] for o in runs.cluster.all("ReplicaSet", "Service")}
    assert not {"a-trainer", "a-inference"} & names
    endpoints = runs.config("a")["endpoints"]
    assert (endpoints["inferenceHost"], endpoints["pool"]) == (f"{pool(runs)}.team.svc", pool(runs))
    assert endpoints["trainerUrl"] == f"http://{pool(runs)}-trainer.team.svc:8080"
    for kind in ("TrainerReady", "InferenceReady"):
        assert runs.condition("a", kind)["reason"] == "Ready"


@pytest.mark.parametrize("trainer", [{"gpus": 2}, {"nodes": 2, "gpus": 1}])
async def test_a_trainer_of_several_processes_stays_the_runs_own(trainer: Obj) -> None:
    runs = SharedRuns(model=shared_model(trainer=trainer))
    await runs.start("a")
    assert deployments(runs) == [pool(runs)]
    assert runs.config("a")["endpoints"]["trainerUrl"] == "http://a-trainer.team.svc:8080"
    owned = {o["metadata"]["name"] for o in runs.cluster.all("ReplicaSet", "Job", "Service")}
    assert {"a-trainer"} <= owned
    assert "trainer-order.json" not in runs.cluster.held("Secret", f"{pool(runs)}-rlrun-token")["data"]


@pytest.mark.parametrize("has_informers", [False, True])
async def test_the_trainer_may_read_the_checkpoint_from_which_a_run_starts_but_no_other(
    runs: SharedRuns, has_informers: bool
) -> None:
    if has_informers:
        runs.world.follow()
    runs.cluster.put(checkpoint_object("source-step-3", 3, SOURCE, run="source", uid="uid-source"))
    runs.artifacts.folders[SOURCE] = manifest(3)
    runs.world.artifacts.folders[SOURCE] = manifest(3)
    await runs.start("a", checkpointId="source-step-3")
    assert readable(runs) == [SOURCE]
    stored = runs.cluster.held("ConfigMap", "a-config")
    config = {**runs.config("a"), "warmStartFrom": "s3://rlrun/other/uid/checkpoints/step-000001"}
    runs.cluster.put({**stored, "data": {"run.json": json.dumps(config)}})
    if runs.world.feed is not None:
        runs.world.feed.deliver()
    await runs.reconcile_pools()
    assert readable(runs) == [], "a user has changed the configuration"


SOURCE = "s3://rlrun/team/uid-source/checkpoints/step-000003"


def readable(runs: SharedRuns) -> list[str]:
    """Folders besides its own that the trainer may read for the only run."""
    (run,) = runs.trainer_order(pool(runs)).runs
    return present(signed_text.verify(run.grant, [STORAGE_KEY], StorageGrant)).readable


@pytest.mark.parametrize("is_fresh", [False, True])
async def test_only_objects_that_the_chart_allows_are_read_by_name(runs: SharedRuns, is_fresh: bool) -> None:
    await runs.start("a")
    stored = runs.cluster.held("RLRun", "a")
    runs.cluster.put({**stored, "spec": {**stored["spec"], "checkpointId": "source-step-3"}})
    runs.world.follow()
    runs.cluster.requests.clear()
    found = await runs.observe_pool(is_fresh=is_fresh)
    assert [run["spec"]["checkpointId"] for run in found.runs] == ["source-step-3"]
    read = {request.kind.kind for request in runs.cluster.requests if request.verb is Verb.GET}
    assert read <= {"Secret", *READ_BY_NAME}


@pytest.mark.parametrize("is_unexpected", [False, True])
async def test_a_run_whose_configuration_cannot_be_verified_stops_no_other_run_of_its_pool(
    runs: SharedRuns, is_unexpected: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs.cluster.put(checkpoint_object("source-step-3", 3, SOURCE, run="source", uid="uid-source"))
    runs.artifacts.folders[SOURCE] = manifest(3)
    runs.world.artifacts.folders[SOURCE] = manifest(3)
    await runs.start("a", checkpointId="source-step-3")
    stored = runs.cluster.held("ConfigMap", "a-config")
    stored["metadata"]["annotations"][REFERENCES_ANNOTATION] = "ü"
    runs.cluster.put(stored)
    if is_unexpected:
        monkeypatch.setattr(observer, "signed_config", fail_to_verify)
    await runs.arrive("b")
    await runs.reconcile_pools()
    assert [run.uid for run in runs.trainer_order(pool(runs)).runs] == ["uid-team-a", "uid-team-b"]
    grant = present(signed_text.verify(runs.trainer_order(pool(runs)).runs[0].grant, [STORAGE_KEY], StorageGrant))
    assert grant.readable == []
    assert ("team/a" in caplog.text) == is_unexpected


def fail_to_verify(*_: object) -> str:
    raise TypeError("unexpected content")


async def test_the_trainer_gets_each_change_of_the_order(runs: SharedRuns) -> None:
    await runs.start("a")
    name = runs.trainer()["metadata"]["name"]
    assert [run.uid for run in runs.sidecars.trainers[name].runs] == ["uid-team-a"]
    await runs.arrive("b")
    assert [run.uid for run in runs.sidecars.trainers[name].runs] == ["uid-team-a", "uid-team-b"]
    await runs.ask("a", stop=True)
    assert [run.uid for run in runs.sidecars.trainers[name].runs] == ["uid-team-b"]
    assert runs.sidecars.trainers[name] == runs.trainer_order(pool(runs, "b"))


async def test_a_run_stays_in_the_order_until_its_pods_have_ended(runs: SharedRuns) -> None:
    await runs.start("a", "b", "c")
    for name in "abc":
        runs.change(name, artifactPolicy="Delete")
    runs.hold_pods()
    await runs.ask("a", stop=True)
    await runs.ask("b", suspend=True)
    assert runs.phases("a", "b") == ["Stopped", "Suspended"]
    assert ordered(runs) == ["a", "b"]
    runs.end_pods()
    await runs.settle()
    assert ordered(runs) == ["c"]
    runs.start_pods()
    await runs.settle()
    runs.start_pods()
    runs.hold_pods()
    runs.cluster.request_deletion(runs.run("c"))
    await runs.settle()
    assert ordered(runs) == ["c"]
    runs.sidecars.sessions = ["uid-team-c"]
    runs.end_pods()
    await runs.settle()
    assert ordered(runs) == []


def ordered(runs: SharedRuns) -> list[str]:
    """Names of the runs in the newest order of the trainer."""
    (order,) = runs.sidecars.trainers.values()
    return [run.uid.removeprefix("uid-team-") for run in order.runs]


CHECKPOINT = "s3://rlrun/team/uid-team-a/checkpoints/step-000007"


@pytest.mark.parametrize("end", ["stop", "suspend"])
@pytest.mark.parametrize("has_informers", [False, True])
async def test_the_last_checkpoint_that_the_trainer_saves_after_a_run_is_listed(
    runs: SharedRuns, has_informers: bool, end: str
) -> None:
    if has_informers:
        runs.world.follow()
    await runs.start("a", "b")
    await end_with_open_session(runs, **{end: True})
    assert ordered(runs) == ["b"]
    assert (await runs.look("a"), await runs.reconcile_pools()) == (2.0, 2.0)
    runs.world.artifacts.folders[CHECKPOINT] = manifest(7)
    runs.sidecars.sessions = []
    assert await runs.reconcile_pools() == 15.0
    assert await runs.look("a", "a") is None
    assert [obj["spec"]["step"] for obj in runs.cluster.all("RLCheckpoint")] == [7]


async def end_with_open_session(runs: SharedRuns, name: str = "a", /, **changes: bool) -> None:
    """A run ends while the trainer has its session open."""
    runs.sidecars.sessions = [f"uid-team-{name}"]
    await runs.ask(name, **changes)
    runs.end_pods()
    await runs.settle()


async def test_a_suspended_run_is_finishing_until_the_trainer_has_closed_its_session(runs: SharedRuns) -> None:
    await runs.start("a")
    await end_with_open_session(runs, suspend=True)
    assert (runs.status("a")["reason"], runs.place("a"), ordered(runs)) == ("Finishing", {}, [])
    runs.sidecars.sessions = []
    await runs.reconcile_pools()
    await runs.settle()
    assert runs.status("a")["reason"] == "Suspended"


async def test_files_are_deleted_after_the_trainer_has_closed_the_session(runs: SharedRuns) -> None:
    await runs.start("a", artifactPolicy="Delete")
    runs.sidecars.sessions = ["uid-team-a"]
    runs.cluster.request_deletion(runs.run("a"))
    await runs.settle()
    runs.end_pods()
    await runs.settle()
    assert (await runs.look("a"), runs.world.artifacts.purged, ordered(runs)) == (2.0, [], [])
    runs.sidecars.sessions = []
    await runs.reconcile_pools()
    await runs.look("a")
    assert [purge.root for purge in runs.world.artifacts.purged] == ["s3://rlrun/team/uid-team-a"]


@pytest.mark.parametrize("is_dedicated", [False, True])
async def test_a_run_joins_its_next_pool_after_the_previous_trainer_has_closed_its_session(
    runs: SharedRuns, is_dedicated: bool
) -> None:
    rules = [{"roles": ["orchestrator"], "action": "RestartRun"}]
    await runs.start("a", "b", failurePolicy={"rules": rules})
    old, since = pool(runs), runs.place("a")["since"]
    runs.sidecars.sessions = ["uid-team-a"]
    if is_dedicated:
        evict(runs, "a")
    else:
        runs.change_model(seqLen=128)
        crash_container(runs.cluster, "a-orchestrator-a1-0", 1)
    await runs.settle()
    runs.end_pods()
    await runs.settle(after=30)
    assert (runs.pool_of("a"), runs.status("a")["reason"], runs.started()) == (old, "WaitingForPreviousPods", {"b"})
    assert f"deployment/{old}-trainer" in runs.status("a")["message"]
    assert (runs.place("a")["since"], runs.place("a").get("admittedTime")) == (since, None)
    assert ordered(runs) == ["b"], "so that the trainer closes the session"
    assert await runs.look("a") == 2.0
    runs.sidecars.sessions = []
    await runs.reconcile_pools()
    await runs.settle()
    assert runs.pool_of("a") != old
    assert runs.place("a")["since"] == since


async def test_a_trainer_that_does_not_respond_holds_up_a_run_for_two_minutes(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    runs.sidecars.is_silent = True
    await runs.ask("a", suspend=True)
    runs.end_pods()
    await runs.settle(after=119)
    assert runs.status("a")["reason"] == "Finishing"
    await runs.settle(after=2)
    assert runs.status("a")["reason"] == "Suspended"


async def test_an_order_whose_response_is_lost_counts(runs: SharedRuns) -> None:
    await runs.start("a")
    runs.sidecars.is_silent = True
    await runs.start("b")
    await end_with_open_session(runs, "b", suspend=True)
    assert runs.status("b")["reason"] == "Finishing"


async def test_a_new_operator_waits_for_the_response_of_the_trainer(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    await end_with_open_session(runs, suspend=True)
    runs.world.pool_trainers.clear()
    await runs.look("a")
    assert runs.status("a")["reason"] == "Finishing"
    runs.sidecars.sessions = []
    await runs.reconcile_pools()
    await runs.look("a")
    assert runs.status("a")["reason"] == "Suspended"


async def test_a_terminating_trainer_still_saves_checkpoints(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    runs.hold_pods()
    runs.cluster.request_deletion(runs.trainer(), runs.clock() + timedelta(seconds=600))
    for pod in runs.cluster.all("Pod"):
        if pod["metadata"]["name"] != runs.trainer()["metadata"]["name"]:
            runs.cluster.put({**pod, "metadata": {**pod["metadata"], "finalizers": []}})
    await runs.ask("a", suspend=True)
    await runs.settle(after=300)
    assert runs.status("a")["reason"] == "Finishing"
    runs.end_pods()
    await runs.settle()
    assert runs.status("a")["reason"] == "Suspended"


async def test_the_order_is_sent_often_for_two_minutes_while_the_trainer_closes_a_session(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    await end_with_open_session(runs, stop=True)
    runs.clock.advance(118)
    assert await runs.reconcile_pools() == 2.0
    runs.clock.advance(3)
    assert await runs.reconcile_pools() == 15.0
    assert await runs.look("a") == 2.0, "the trainer still names the run"


async def test_the_order_has_token_folder_and_limit_of_each_run(runs: SharedRuns) -> None:
    await runs.arrive("a")
    runs.add("b", batchSize=1024, oversamplingFactor=1.5)
    await runs.settle()
    order = runs.order(pool(runs))
    assert order.base == MODEL
    assert [run.uid for run in order.runs] == ["uid-team-a", "uid-team-b"]
    first, second = order.runs
    assert first.token_digest == hashlib.sha256(run_token(TOKEN_KEY, first.uid).encode()).hexdigest()
    assert first.policies == "s3://rlrun/team/uid-team-a/policy"
    assert (first.max_requests, second.max_requests) == (512, 3072)
    grant = present(signed_text.verify(order.grant, [STORAGE_KEY], StorageGrant))
    assert (grant.owner, grant.folder, grant.listable) == (pool(runs), "", [])
    assert grant.readable == [first.policies, second.policies]


async def test_sidecars_get_each_change_of_the_order(runs: SharedRuns) -> None:
    await runs.start("a")
    (pod,) = runs.sidecars.orders
    assert [run.uid for run in runs.sidecars.orders[pod].runs] == ["uid-team-a"]
    await runs.arrive("b")
    assert [run.uid for run in runs.sidecars.orders[pod].runs] == ["uid-team-a", "uid-team-b"]
    await runs.ask("a", stop=True)
    assert [run.uid for run in runs.sidecars.orders[pod].runs] == ["uid-team-b"]
    assert runs.sidecars.orders[pod] == runs.order(pool(runs, "b"))


async def test_the_order_is_sent_again_soon_if_a_sidecar_does_not_answer(runs: SharedRuns) -> None:
    await runs.start("a")
    runs.sidecars.is_silent = True
    assert await runs.reconcile_pools() == 5.0
    runs.sidecars.is_silent = False
    assert await runs.reconcile_pools() == 15.0


async def test_sidecars_that_do_not_answer_delay_no_other() -> None:
    runs = SharedRuns(model=shared_model(sharing={"engines": 11}))
    await runs.start("a")
    *_, last = runs.sidecars.orders
    all_asked, asked = asyncio.Event(), set[str]()

    async def push(pod: Obj, order: PoolOrder) -> None:
        asked.add(pod["metadata"]["name"])
        if len(asked) == 11:
            all_asked.set()
        if pod["metadata"]["name"] != last:
            # A silent node takes the whole timeout.
            await asyncio.wait_for(all_asked.wait(), 2)
            raise ServiceUnavailable(Problem(reason="Unreachable", message="nobody answers"))

    runs.sidecars.push_order = push  # type: ignore[method-assign]
    assert await runs.reconcile_pools() == 5.0
    assert last in asked


async def test_a_pod_on_a_silent_node_gets_no_order(runs: SharedRuns) -> None:
    await runs.start("a")
    for pod in runs.pool_pods():
        conditions = [{"type": "Ready", "status": "Unknown"}, {"type": "ContainersReady", "status": "True"}]
        runs.cluster.put({**pod, "status": {**pod["status"], "conditions": conditions}})
    runs.sidecars.is_silent = True
    assert await runs.reconcile_pools() == 15.0


async def test_a_pod_without_a_running_sidecar_or_trainer_gets_no_order(runs: SharedRuns) -> None:
    await runs.arrive("a")
    runs.start_pods()
    for pod in runs.pool_pods():
        for status in pod["status"]["containerStatuses"]:
            status["state"] = {"waiting": {"reason": "ContainerCreating"}}
        runs.cluster.put(pod)
    await runs.reconcile_pools()
    assert (runs.sidecars.orders, runs.sidecars.trainers) == ({}, {})


async def test_the_run_names_its_pool_before_its_objects_are_written(runs: SharedRuns) -> None:
    await runs.arrive("a")
    runs.start_pods()
    refused = ApiError(500, "InternalError", "no", action="")
    runs.cluster.answers["apply ServiceAccount team/a"] = [refused]
    with pytest.raises(ApiError):
        await runs.look("a")
    assert pool(runs)
    assert runs.started() == set()
    assert [run.uid for run in runs.order(pool(runs)).runs] == ["uid-team-a"]


async def test_the_next_attempt_names_its_pool_before_its_objects_are_written(runs: SharedRuns) -> None:
    await runs.start("a")
    old = pool(runs)
    runs.change_model(seqLen=128)
    del runs.cluster.objects["Deployment", "team", old]
    await runs.look("a")
    runs.end_pods()
    await runs.settle(after=30)
    assert pool(runs) != old
    assert runs.started() == set()
    runs.start_pods()
    runs.cluster.answers["apply ConfigMap team/a-config"] = [ApiError(500, "InternalError", "no", action="")]
    with pytest.raises(ApiError):
        await runs.look("a")
    assert [run.uid for run in runs.order(pool(runs)).runs] == ["uid-team-a"]


@pytest.mark.proves("infrastructure.dedicated")
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"infrastructure": {"dedicated": True}}, "`spec.infrastructure.dedicated` is true"),
        ({"lora": {"enabled": False}}, "`spec.lora.enabled` is false"),
    ],
)
async def test_a_run_that_cannot_share_has_engines_of_its_own_and_says_why(spec: dict[str, object], why: str) -> None:
    runs = SharedRuns(model=shared_model(trainer={"gpus": 0, "fullFineTuning": True}))
    await runs.arrive("a", **spec)
    assert runs.pool_of("a") is None
    assert "a-inference" in {o["metadata"]["name"] for o in runs.cluster.all("ReplicaSet")}
    message = runs.condition("a", "Validated")["message"]
    assert message.startswith("The run has a trainer and engines of its own: ")
    assert why in message
    assert runs.cluster.all("Deployment") == []
    assert not runs.place("a"), "it needs no slot of a pool"


async def test_without_tokens_no_run_shares_engines(runs: SharedRuns) -> None:
    runs.world.token_key = None
    await runs.arrive("a")
    assert runs.pool_of("a") is None
    assert "no key for tokens" in runs.condition("a", "Validated")["message"]


async def test_a_dedicated_model_is_as_before() -> None:
    runs = SharedRuns(model=shared_model(sharing={"mode": "Dedicated"}))
    await runs.arrive("a")
    assert (runs.pool_of("a"), runs.place("a")) == (None, {})
    assert not runs.condition("a", "Validated").get("message")


async def test_a_run_beyond_the_slots_of_its_pool_is_queued(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    await runs.arrive("c", "d")
    assert runs.phases("c", "d") == ["Queued", "Queued"]
    assert runs.status("c")["reason"] == "PoolFull"
    assert f"All 2 slots of the shared pool {pool(runs)}" in runs.status("c")["message"]
    assert [runs.place(name)["runsAhead"] for name in "cd"] == [0, 1]
    assert runs.started() == {"a", "b"}
    await runs.ask("b", stop=True)
    runs.end_pods()
    await runs.settle()
    assert runs.phases("c", "d") == ["Pending", "Queued"]
    assert [run.uid for run in runs.order(pool(runs)).runs] == ["uid-team-a", "uid-team-c"]


async def test_a_full_pool_does_not_hold_up_other_runs(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    await runs.arrive("c")
    await runs.arrive("e", infrastructure={"dedicated": True})
    assert runs.phases("c", "e") == ["Queued", "Pending"]


async def test_slots_are_not_given_twice_after_a_restart_of_the_operator(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    await runs.arrive("c")
    runs.restart()
    await runs.look("c")
    assert runs.phases("c") == ["Queued"]
    await runs.settle()
    assert runs.phases("a", "b", "c") == ["Pending", "Pending", "Queued"]
    assert len(runs.order(pool(runs)).runs) == 2


async def test_waiting_runs_keep_their_order_after_a_restart_of_the_operator(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    await runs.arrive("c", "d")
    runs.change("b", stop=True)
    runs.restart()
    await runs.look("b", "b")
    runs.end_pods()
    await runs.look("b", "d")
    assert runs.phases("d") == ["Queued"]
    await runs.look("c", "d")
    assert runs.phases("c", "d") == ["Pending", "Queued"]


async def test_the_pods_of_a_pool_count_once_in_the_queue() -> None:
    gpu = {"gpus": 1}
    runs = SharedRuns(
        model=shared_model(trainer=gpu, inference=gpu, sharing={"engines": 2}), capacity={"nvidia.com/gpu": "4"}
    )
    await runs.start("a", "b")
    assert runs.phases("a", "b") == ["Pending", "Pending"], "two engines and a trainer"
    assert runs.place("a")["resources"] == {"nvidia.com/gpu": "0"}
    await runs.arrive("e", infrastructure={"dedicated": True})
    assert runs.status("e")["reason"] == "WaitingForCapacity"
    runs.restart(capacity={"nvidia.com/gpu": "4"})
    await runs.settle()
    assert runs.phases("a", "b", "e") == ["Pending", "Pending", "Queued"]


@pytest.mark.parametrize(
    ("trainer", "needs"),
    [(1, "needs 5 nvidia.com/gpu for"), (2, "needs 2 nvidia.com/gpu and 4 nvidia.com/gpu for")],
)
async def test_the_first_run_of_a_pool_says_that_it_waits_for_the_pool_as_well(trainer: int, needs: str) -> None:
    model = shared_model(trainer={"gpus": trainer}, inference={"gpus": 4})
    runs = SharedRuns(model=model, capacity={"nvidia.com/gpu": "8"})
    await runs.arrive("e", infrastructure={"dedicated": True})
    await runs.arrive("a")
    assert f"{needs} its shared pool rlpool-tiny-model-" in runs.status("a")["message"]


async def test_a_run_whose_pool_moves_between_two_attempts_stays_ahead_of_later_runs() -> None:
    runs = SharedRuns(
        model=shared_model(trainer={"gpus": 2}, inference={"gpus": 4}, sharing={"maxRuns": 4}),
        capacity={"nvidia.com/gpu": "10"},
    )
    await runs.start("a", "b", failurePolicy={"rules": [{"roles": ["trainer"], "action": "RestartRun"}]})
    runs.change_model(seqLen=128)
    await runs.arrive("c")
    since = runs.place("a")["since"]
    crash_container(runs.cluster, "a-trainer-0", 1)
    await runs.settle()
    runs.end_pods()
    await runs.settle(after=60)
    await runs.settle(after=60)
    assert runs.phases("a", "b", "c") == ["Queued", "Pending", "Queued"]
    assert (runs.place("a")["since"], runs.place("a")["runsAhead"], runs.place("c")["runsAhead"]) == (since, 0, 1)


async def test_a_pool_that_exceeds_the_platform_is_refused() -> None:
    gpu = {"gpus": 2}
    runs = SharedRuns(model=shared_model(trainer=gpu, inference=gpu), capacity={"nvidia.com/gpu": "3"})
    await runs.arrive("a")
    assert runs.status("a")["reason"] == "ExceedsCapacity"
    assert "pool 2" in runs.status("a")["message"]


async def test_a_run_waits_for_the_engines_of_its_pool(runs: SharedRuns) -> None:
    await start_without_engines(runs, "a")
    condition = runs.condition("a", "InferenceReady")
    assert (condition["status"], condition["reason"]) == ("False", "PoolStarting")
    assert f"kubectl describe deployment {pool(runs)} -n team" in condition["message"]
    assert "No action needed" not in condition["message"]
    assert runs.status("a")["reason"] == "PoolStarting"
    assert "PoolStarting" not in {event["reason"] for event in runs.cluster.all("Event")}
    runs.start_pods()
    await runs.settle()
    assert runs.condition("a", "InferenceReady")["status"] == "True"


async def test_runs_create_nothing_before_a_pod_of_their_pool_has_a_node() -> None:
    runs = SharedRuns(model=shared_model(trainer={"gpus": 1}, inference={"gpus": 4}))
    await runs.arrive("a", "b")
    assert runs.started() == set()
    assert runs.status("a")["reason"] == runs.condition("a", "InferenceReady")["reason"] == "PoolStarting"
    step_kubelet(runs.cluster)
    leave_unscheduled(runs, runs.engine())
    await runs.settle()
    for name in "ab":
        assert runs.status(name)["phase"] == "Pending"
        assert runs.status(name)["reason"] == runs.condition(name, "InferenceReady")["reason"] == "Unschedulable"
        assert runs.condition(name, "TrainerReady")["reason"] == "Ready"
    assert runs.started() == set()
    assert len(runs.order(pool(runs)).runs) == 2, "both have their slots"
    runs.start_pods(ready=False)
    leave_unscheduled(runs, runs.trainer())
    await runs.settle()
    for name in "ab":
        assert runs.status(name)["reason"] == runs.condition(name, "TrainerReady")["reason"] == "Unschedulable"
        assert runs.condition(name, "InferenceReady")["reason"] == "PoolStarting"
    assert runs.started() == set()
    runs.start_pods(ready=False)
    await runs.settle()
    assert runs.started() == {"a", "b"}


async def test_a_run_that_waits_for_a_pod_of_its_pool_follows_a_change_of_its_model(runs: SharedRuns) -> None:
    await runs.arrive("a")
    old, since = pool(runs), runs.place("a")["since"]
    runs.change_model(seqLen=128)
    await runs.settle()
    assert pool(runs) != old
    assert (runs.started(), runs.phases("a"), runs.place("a")["since"]) == (set(), ["Pending"], since)
    await runs.settle(after=601)
    assert runs.pool_objects(old) == []
    runs.start_pods()
    await runs.settle()
    assert (runs.started(), runs.config("a")["endpoints"]["pool"]) == ({"a"}, pool(runs))
    assert runs.status("a")["attempt"] == 1


async def test_a_run_that_waits_for_a_pod_of_its_pool_fails_by_its_start_deadline() -> None:
    runs = SharedRuns()
    await runs.arrive("a", startDeadlineSeconds=600)
    step_kubelet(runs.cluster)
    leave_unscheduled(runs, runs.engine())
    await runs.settle(after=599)
    assert runs.phases("a") == ["Pending"]
    await runs.settle(after=2)
    assert (runs.phases("a"), runs.status("a")["reason"]) == (["Failed"], "Unschedulable")
    assert "startDeadlineSeconds" in runs.status("a")["message"]


async def test_a_run_with_pods_does_not_wait_again_when_its_pool_loses_its_node(runs: SharedRuns) -> None:
    await runs.start("a")
    leave_unscheduled(runs, runs.engine())
    leave_unscheduled(runs, runs.trainer())
    del runs.cluster.objects["ReplicaSet", "team", "a-env-0"]
    await runs.settle()
    assert "a-env-0" in {o["metadata"]["name"] for o in runs.cluster.all("ReplicaSet")}


async def test_a_run_whose_pool_never_starts_fails_with_advice(runs: SharedRuns) -> None:
    await start_without_engines(runs, "a")
    await runs.settle(after=100_000)
    status = runs.status("a")
    assert (status["phase"], status["reason"]) == ("Failed", "StartDeadlineExceeded")
    assert f"kubectl describe deployment {pool(runs)}" in status["message"]
    assert runs.condition("a", "InferenceReady")["reason"] == "RunFinished"


async def test_a_pool_that_starts_hides_no_problem_of_the_run(runs: SharedRuns) -> None:
    await start_without_engines(runs, "a")
    pod = next(pod for pod in runs.cluster.all("Pod") if "-env-" in pod["metadata"]["name"])
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    pod["status"]["containerStatuses"][0]["state"] = waiting
    runs.cluster.put(pod)
    await runs.settle()
    assert runs.condition("a", "InferenceReady")["reason"] == "PoolStarting"
    assert runs.status("a")["reason"] == "ImagePullFailed"


async def test_a_suspended_run_does_not_wait_for_its_pool(runs: SharedRuns) -> None:
    await start_without_engines(runs, "a")
    await runs.ask("a", suspend=True)
    assert runs.condition("a", "InferenceReady")["reason"] == "Suspended"


async def test_a_missing_engine_of_several_is_no_reason_of_a_run_that_trains() -> None:
    runs = SharedRuns(model=shared_model(sharing={"engines": 2}))
    await runs.start("a")
    await train(runs)
    quiet = present(await runs.look("a"))
    first, second = runs.pool_pods("inference")
    leave_unscheduled(runs, first)
    await runs.settle()
    condition = runs.condition("a", "InferenceReady")
    assert (condition["status"], "Insufficient nvidia.com/gpu" in condition["message"]) == ("False", True)
    assert (runs.phases("a"), runs.status("a").get("reason")) == (["Running"], None)
    assert await runs.look("a") == quiet
    assert "Unschedulable" not in {event["reason"] for event in runs.cluster.all("Event")}
    leave_unscheduled(runs, second)
    await runs.settle()
    assert runs.status("a")["reason"] == "Unschedulable", "no engine is left"


async def test_a_run_whose_status_lost_its_pool_keeps_it(runs: SharedRuns) -> None:
    await runs.start("a")
    name, run = pool(runs), runs.run("a")
    runs.cluster.put({**run, "status": {key: value for key, value in run["status"].items() if key != "pool"}})
    await runs.settle(after=5)
    assert pool(runs) == name
    assert "a-inference" not in {o["metadata"]["name"] for o in runs.cluster.all("ReplicaSet")}
    assert runs.condition("a", "InferenceReady")["reason"] == "Ready"


async def test_a_configuration_that_names_no_shared_pool_of_the_model_moves_no_run(runs: SharedRuns) -> None:
    await runs.start("a")
    name, config = pool(runs), runs.config("a")
    config["endpoints"]["pool"] = "Not a name"
    stored = runs.cluster.held("ConfigMap", "a-config")
    runs.cluster.put({**stored, "data": {**stored["data"], "run.json": json.dumps(config)}})
    await runs.settle(after=5)
    assert pool(runs) == name


ROLES = pytest.mark.parametrize(("role", "kind"), [("inference", "InferenceReady"), ("trainer", "TrainerReady")])


@ROLES
async def test_a_problem_of_the_pools_pods_is_that_of_each_run(runs: SharedRuns, role: str, kind: str) -> None:
    await runs.arrive("a", "b")
    runs.start_pods(ready=False)
    break_pull(runs, runs.pool_pods(role)[0])
    await runs.settle()
    for name in "ab":
        assert runs.condition(name, kind)["reason"] == "ImagePullFailed"
        assert runs.status(name)["reason"] == "ImagePullFailed"


@ROLES
async def test_refused_pods_of_the_pool_are_reported(runs: SharedRuns, role: str, kind: str) -> None:
    await runs.arrive("a")
    name = pool(runs) if role == "inference" else f"{pool(runs)}-trainer"
    deployment = runs.cluster.held("Deployment", name)
    failure = {"type": "ReplicaFailure", "status": "True", "message": "pods is forbidden: exceeded quota: gpus"}
    runs.cluster.put({**deployment, "status": {"conditions": [failure]}})
    await runs.settle()
    assert runs.condition("a", kind)["reason"] == "QuotaExceeded"


async def test_an_object_of_the_pool_that_the_api_server_refuses_is_reported(runs: SharedRuns) -> None:
    runs.add("a")
    await runs.look("a", "a")
    refused = ApiError(403, "Forbidden", "exceeded quota: deployments", action="")
    runs.cluster.answers[f"apply Deployment team/{pool(runs)}"] = [refused]
    with pytest.raises(ApiError):
        await runs.reconcile_pools()
    await runs.look("a")
    for kind in ("InferenceReady", "TrainerReady"):
        condition = runs.condition("a", kind)
        assert (condition["reason"], "quota" in condition["message"]) == ("PoolRefused", True)
    runs.cluster.answers.clear()
    await runs.settle()
    assert runs.condition("a", "InferenceReady")["reason"] == "PoolStarting"


@pytest.mark.parametrize("role", ["inference", "trainer"])
async def test_a_crash_of_a_pools_pod_restarts_no_run(runs: SharedRuns, role: str) -> None:
    rules = [{"roles": ["trainer", "inference"], "action": "Fail"}]
    await runs.start("a", "b", maxRestarts=0, failurePolicy={"rules": rules})
    await train(runs)
    (pod,) = runs.pool_pods(role)
    for _ in range(5):
        crash_container(runs.cluster, pod["metadata"]["name"], 137)
        await runs.settle(after=60)
    for name in "ab":
        status = runs.status(name)
        assert (status["attempt"], status.get("restarts", 0), status.get("runRestarts", 0)) == (1, 0, 0)
        assert status["phase"] == "Running"


async def test_a_run_that_waits_for_the_trainer_of_its_pool_says_so(runs: SharedRuns) -> None:
    await start_without_engines(runs, "a")
    condition = runs.condition("a", "TrainerReady")
    assert (condition["status"], condition["reason"]) == ("False", "PoolStarting")
    assert f"kubectl describe deployment {pool(runs)}-trainer -n team" in condition["message"]


async def test_a_dead_trainer_of_a_pool_is_no_failure_of_a_run_that_trains(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    await train(runs)
    fail_trainer(runs)
    await runs.settle(after=60)
    for name in "ab":
        condition = runs.condition(name, "TrainerReady")
        assert (condition["status"], condition["reason"]) == ("False", "PoolRestarting")
        assert "TrainerOutOfMemory" in condition["message"], "the cause"
        status = runs.status(name)
        assert (status["phase"], status["reason"], status["attempt"]) == ("Running", "PoolRestarting", 1)
    del runs.cluster.objects["Pod", "team", runs.trainer()["metadata"]["name"]]
    await runs.settle(after=5)
    assert runs.condition("a", "TrainerReady")["reason"] == "PoolRestarting", "no pod at all"
    runs.start_pods()
    await runs.settle()
    assert runs.condition("a", "TrainerReady")["reason"] == "Ready"
    assert (runs.status("a")["phase"], runs.status("a").get("reason")) == ("Running", None)


async def test_a_trainer_that_is_missing_together_with_its_model_is_explained(runs: SharedRuns) -> None:
    await runs.start("a")
    await train(runs)
    del runs.cluster.objects["RLModel", "", "tiny-model"]
    del runs.cluster.objects["Deployment", "team", f"{pool(runs)}-trainer"]
    del runs.cluster.objects["Pod", "team", runs.trainer()["metadata"]["name"]]
    await runs.settle()
    condition = runs.condition("a", "TrainerReady")
    assert condition["reason"] == "PoolRestarting"
    assert "ModelNotFound" in condition["message"]


async def test_a_dead_trainer_of_a_pool_ends_a_run_by_its_deadline_only(runs: SharedRuns) -> None:
    await runs.start("a", stallDeadlineSeconds=600)
    await train(runs)
    fail_trainer(runs)
    await runs.settle(after=599)
    assert runs.phases("a") == ["Running"]
    await runs.settle(after=2)
    assert (runs.phases("a"), runs.status("a")["reason"]) == (["Failed"], "StallDeadlineExceeded")
    assert "TrainerOutOfMemory" in runs.status("a")["message"]


async def test_a_suspended_run_says_nothing_about_the_trainer_of_its_pool(runs: SharedRuns) -> None:
    await runs.start("a")
    await train(runs)
    fail_trainer(runs)
    await runs.settle()
    await runs.ask("a", suspend=True)
    assert runs.condition("a", "TrainerReady")["reason"] == "Suspended"


def fail_trainer(runs: SharedRuns) -> None:
    """The trainer of the pool needs more memory than it may have, again and again."""
    pod = runs.trainer()
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
    status = pod["status"]["containerStatuses"][0]
    status |= {"restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m"}}}
    status["lastState"] = terminated(137, "OOMKilled")
    runs.cluster.put(pod)


EVICTED = Problem(reason="PoolEvicted", message="The shared pool's trainer repeatedly ran out of memory for this run.")


def evict(runs: SharedRuns, name: str) -> None:
    """The orchestrator of a run ends because the trainer refuses the run."""
    pod = runs.cluster.held("Pod", f"{name}-orchestrator-a1-0")
    pod["status"] |= {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}]}
    message = RunStatus(phase=RunPhase.failed, problem=EVICTED).model_dump_json(by_alias=True)
    state = terminated(ExitCode.RESTART, message=message)
    pod["status"]["containerStatuses"] = [{"name": "orchestrator", "restartCount": 0, "state": state}]
    runs.cluster.put(pod)


async def test_a_run_that_kills_the_trainer_gets_pods_of_its_own_for_ever(runs: SharedRuns) -> None:
    await runs.start("a", "b", "c")
    evict(runs, "a")
    await runs.settle()
    status = runs.status("a")
    assert (status["poolEvicted"], status["runRestarts"], status.get("runRestartsTowardMax", 0)) == (True, 1, 0)
    assert "PoolEvicted" in status["message"]
    runs.end_pods()
    await runs.settle(after=30)
    assert runs.pool_of("a") is None
    assert {"a-trainer", "a-inference"} <= {o["metadata"]["name"] for o in runs.cluster.all("ReplicaSet")}
    assert runs.config("a")["endpoints"]["trainerUrl"] == "http://a-trainer.team.svc:8080"
    message = runs.condition("a", "Validated")["message"]
    assert "of its own: the trainer of its shared pool refused it (`PoolEvicted`)" in message
    assert [run.uid for run in runs.trainer_order(pool(runs, "b")).runs] == ["uid-team-b", "uid-team-c"]
    assert (runs.status("b")["attempt"], runs.status("b").get("poolEvicted", False)) == (1, False)
    await runs.ask("a", suspend=True)
    runs.end_pods()
    await runs.settle()
    await runs.ask("a", suspend=False)
    assert runs.pool_of("a") is None


@pytest.mark.parametrize(
    ("action", "phase"),
    [("RestartRole", "Pending"), ("RestartRun", "Pending"), ("RestartRunIgnoreMax", "Pending"), ("Fail", "Failed")],
)
async def test_the_failure_policy_decides_whether_an_evicted_run_restarts(
    runs: SharedRuns, action: str, phase: str
) -> None:
    await runs.start("a", failurePolicy={"rules": [{"roles": ["orchestrator"], "action": action}]})
    evict(runs, "a")
    await runs.settle()
    status = runs.status("a")
    assert (status["phase"], status.get("runRestartsTowardMax", 0)) == (phase, 0)


async def test_an_evicted_run_without_restarts_gets_its_own_trainer(runs: SharedRuns) -> None:
    await runs.start("a", maxRestarts=0)
    evict(runs, "a")
    await runs.settle()
    runs.end_pods()
    await runs.settle(after=30)
    assert (runs.phases("a"), runs.status("a")["attempt"]) == (["Pending"], 2)
    assert runs.config("a")["endpoints"]["trainerUrl"] == "http://a-trainer.team.svc:8080"


async def test_an_evicted_run_queues_for_its_own_gpus() -> None:
    gpu = {"gpus": 1}
    runs = SharedRuns(model=shared_model(trainer=gpu, inference=gpu), capacity={"nvidia.com/gpu": "3"})
    await runs.start("a", "b")
    evict(runs, "a")
    await runs.settle()
    runs.end_pods()
    await runs.settle(after=30)
    await runs.settle(after=30)
    assert (runs.phases("a"), runs.status("a")["reason"]) == (["Queued"], "WaitingForCapacity")


async def test_a_changed_model_gives_new_attempts_a_new_pool_and_the_old_one_ends_with_its_last_run(
    runs: SharedRuns,
) -> None:
    await runs.start("a")
    old = pool(runs)
    runs.change_model(seqLen=128)
    names = (old, f"{old}-trainer")
    before = [runs.cluster.held("Deployment", name) for name in names]
    await runs.arrive("b")
    new = pool(runs, "b")
    assert (pool(runs), runs.config("a")["endpoints"]["pool"]) == (old, old)
    assert new != old
    assert [runs.cluster.held("Deployment", name) for name in names] == before, "the pods of a pool never change"
    assert [run.uid for run in runs.order(old).runs] == ["uid-team-a"]
    await runs.ask("a", stop=True)
    runs.end_pods()
    await runs.settle()
    await runs.settle(after=601)
    assert runs.pool_objects(old) == []
    assert runs.pool_objects(new) == POOL


async def test_a_resumed_run_joins_the_pool_of_the_changed_model(runs: SharedRuns) -> None:
    await runs.start("a")
    old = pool(runs)
    await runs.ask("a", suspend=True)
    runs.end_pods()
    await runs.settle()
    assert not runs.order(old).runs
    runs.change_model(seqLen=128)
    await runs.ask("a", suspend=False)
    assert pool(runs) != old
    assert [run.uid for run in runs.order(pool(runs)).runs] == ["uid-team-a"]


async def test_an_idle_pool_is_deleted_after_its_time_and_comes_back(runs: SharedRuns) -> None:
    runs.change_model(sharing={"mode": "Namespace", "idleSeconds": 60})
    await runs.start("a")
    name = pool(runs)
    await runs.ask("a", stop=True)
    runs.end_pods()
    await runs.settle()
    await runs.settle(after=59)
    assert runs.pool_objects(name) == POOL
    assert not next(iter(runs.sidecars.orders.values())).runs, "the ended run has no access"
    await runs.settle(after=2)
    assert runs.pool_objects(name) == []
    await runs.arrive("b")
    assert pool(runs, "b") == name
    assert runs.pool_objects(name) == POOL


async def test_a_new_run_within_the_time_begins_it_again(runs: SharedRuns) -> None:
    runs.change_model(sharing={"mode": "Namespace", "idleSeconds": 60})
    await runs.start("a")
    await runs.ask("a", stop=True)
    runs.end_pods()
    await runs.settle()
    await runs.settle(after=50)
    await runs.start("b")
    await runs.settle(after=50)
    await runs.ask("b", stop=True)
    runs.end_pods()
    await runs.settle()
    await runs.settle(after=50)
    assert runs.pool_objects(pool(runs, "b")) == POOL
    await runs.settle(after=11)
    assert runs.pool_objects(pool(runs, "b")) == []


async def test_a_pool_without_its_model_is_deleted_as_well(runs: SharedRuns) -> None:
    await runs.start("a")
    del runs.cluster.objects["RLModel", "", "tiny-model"]
    await runs.settle()
    assert runs.pool_objects(pool(runs)) == POOL, "its run trains on"
    assert len(runs.order(pool(runs)).runs) == 1
    await runs.ask("a", stop=True)
    runs.end_pods()
    await runs.settle()
    await runs.settle(after=601)
    assert runs.pool_objects(pool(runs)) == []


@pytest.mark.parametrize("is_model_gone", [False, True])
async def test_a_pool_that_cannot_be_created_any_more_gets_its_service_and_its_policy_back(
    runs: SharedRuns, is_model_gone: bool
) -> None:
    await runs.start("a")
    if is_model_gone:
        del runs.cluster.objects["RLModel", "", "tiny-model"]
    else:
        runs.change_model(seqLen=128)
    for kind, name in (("Service", ""), ("Service", "-trainer"), ("NetworkPolicy", "")):
        del runs.cluster.objects[kind, "team", f"{pool(runs)}{name}"]
    await runs.settle()
    assert runs.pool_objects(pool(runs)) == POOL


async def test_an_idle_pool_gets_its_policy_back(runs: SharedRuns) -> None:
    await runs.start("a")
    await runs.ask("a", stop=True)
    runs.end_pods()
    await runs.settle()
    del runs.cluster.objects["NetworkPolicy", "team", pool(runs)]
    await runs.settle()
    assert runs.pool_objects(pool(runs)) == POOL


async def test_no_engines_are_created_without_their_service(runs: SharedRuns) -> None:
    runs.add("a")
    await runs.look("a", "a")
    refused = ApiError(403, "Forbidden", "exceeded quota: services", action="")
    runs.cluster.answers[f"apply Service team/{pool(runs)}"] = [refused]
    with pytest.raises(ApiError):
        await runs.reconcile_pools()
    assert runs.cluster.all("Deployment") == []


@pytest.mark.parametrize("change", [{"seqLen": 128}, {"sharing": {"mode": "Dedicated", "idleSeconds": 86_400}}])
async def test_a_pool_that_no_run_can_join_ends_with_its_last_run(runs: SharedRuns, change: Obj) -> None:
    await runs.start("a", "b")
    runs.change_model(**change)
    await runs.ask("a", stop=True)
    assert runs.pool_objects(pool(runs)) == POOL
    await runs.ask("b", stop=True)
    runs.end_pods()
    await runs.settle()
    assert runs.pool_objects(pool(runs)) == []


async def test_a_pool_is_deleted_with_its_account_after_its_trainer_has_saved_the_last_checkpoints(
    runs: SharedRuns,
) -> None:
    """S3 accepts the token of the trainer's pod only while the pod's ServiceAccount exists."""
    await runs.start("a")
    name = pool(runs)
    runs.change_model(seqLen=128)
    runs.change("a", suspend=True)
    await runs.look("a", "a")
    runs.end_pods()
    await runs.look("a", "a")
    runs.hold_pods()
    await runs.settle(after=300)
    assert deployments(runs) == []
    assert "ServiceAccount" in runs.pool_objects(name)
    assert runs.status("a")["reason"] == "Finishing"
    runs.end_pods()
    await runs.settle()
    assert runs.pool_objects(name) == []
    assert runs.status("a")["reason"] == "Suspended"


async def test_a_pool_whose_deletion_was_interrupted_is_found_and_deleted(runs: SharedRuns) -> None:
    runs.change_model(sharing={"mode": "Namespace", "idleSeconds": 0})
    await runs.start("a")
    name = pool(runs)
    runs.change("a", stop=True)
    await runs.look("a", "a")
    runs.end_pods()
    await runs.look("a", "a")
    await runs.reconcile_pools()
    assert deployments(runs) == []
    runs.cluster.answers[f"delete Secret team/{name}-rlrun-token"] = [ApiError(500, "InternalError", "no", action="")]
    with pytest.raises(ApiError):
        await runs.reconcile_pools()
    runs.cluster.answers.clear()
    del runs.cluster.objects["RLRun", "team", "a"]
    assert [key.name for key in runs.pool_keys()] == [name]
    await runs.reconcile_pools()
    assert runs.pool_objects(name) == []


@pytest.mark.parametrize("suffix", ["", "-trainer"])
async def test_a_run_leaves_a_pool_that_cannot_be_created_any_more(runs: SharedRuns, suffix: str) -> None:
    await runs.start("a")
    old = pool(runs)
    runs.change_model(seqLen=128)
    del runs.cluster.objects["Deployment", "team", f"{old}{suffix}"]
    del runs.cluster.objects["Pod", "team", runs.trainer()["metadata"]["name"]]
    await runs.look("a")
    status = runs.status("a")
    assert (status["runRestarts"], status.get("runRestartsTowardMax", 0)) == (1, 0)
    assert "PoolReplaced" in status["message"]
    assert f"has no Deployment {old}{suffix}." in status["message"]
    runs.end_pods()
    await runs.settle(after=30)
    assert pool(runs) != old


@pytest.mark.parametrize("suffix", ["", "-trainer"])
async def test_a_deleted_deployment_comes_back_while_the_model_is_the_same(runs: SharedRuns, suffix: str) -> None:
    await runs.start("a")
    del runs.cluster.objects["Deployment", "team", f"{pool(runs)}{suffix}"]
    await runs.settle()
    assert runs.pool_objects(pool(runs)) == POOL
    assert runs.status("a")["attempt"] == 1


@pytest.mark.parametrize(("trainer", "own"), [(2, 2), (1, 0)])
async def test_the_usage_of_a_run_has_only_its_own_gpus(trainer: int, own: int) -> None:
    runs = SharedRuns(model=shared_model(trainer={"gpus": trainer}, inference={"gpus": 4}))
    await runs.start("a")
    assert runs.status("a")["resolved"]["gpus"] == own


async def test_a_settled_pool_is_not_written_again(runs: SharedRuns) -> None:
    await runs.start("a", "b")
    writes = runs.cluster.writes
    for _ in range(3):
        await runs.settle(after=20)
    assert runs.cluster.writes == writes


async def test_an_operator_with_informers_creates_and_deletes_a_pool(runs: SharedRuns) -> None:
    runs.world.follow()
    await runs.start("a", "b")
    await runs.settle()
    assert runs.condition("a", "InferenceReady")["reason"] == "Ready"
    assert len(runs.order(pool(runs)).runs) == 2
    for name in "ab":
        runs.change(name, stop=True)
    await runs.settle()
    runs.end_pods()
    await runs.settle()
    await runs.settle(after=601)
    assert runs.pool_objects(pool(runs)) == []


async def test_informers_that_lag_behind_delete_no_pool_with_a_run(runs: SharedRuns) -> None:
    await runs.start("a")
    await runs.ask("a", stop=True)
    runs.end_pods()
    await runs.settle()
    runs.clock.advance(601)
    runs.add("b")
    await runs.look("b")
    feed = present(runs.world.follow().feed)
    # The informer of this operator has not seen the new run.
    feed.informers._informers[RLRUN, None]._by_name.pop(("team", "b"))
    await runs.reconcile_pools()
    assert runs.pool_objects(pool(runs, "b")) == POOL


async def test_the_gpu_time_of_a_pool_is_recorded_for_the_pool() -> None:
    sharing = {"engines": 3, "idleSeconds": 0}
    runs = SharedRuns(model=shared_model(trainer={"gpus": 1}, inference={"gpus": 2}, sharing=sharing))
    await runs.start("a")
    name = pool(runs)
    runs.clock.advance(60)
    await runs.ask("a", stop=True)
    runs.end_pods()
    await runs.settle()
    lines = [line for content in runs.artifacts.usage.values() for line in content.splitlines()]
    records = [found for line in lines if (found := UsageRecord.model_validate_json(line)).kind == "ServingPool"]
    assert sorted((record.name, record.model, record.gpus) for record in records) == [
        (name, MODEL, 6),
        (f"{name}-trainer", MODEL, 1),
    ]
    assert runs.pool_objects(name) == []


async def test_the_gpu_time_of_a_pool_is_recorded_without_the_label_of_its_namespace() -> None:
    runs = SharedRuns(model=shared_model(inference={"gpus": 2}))
    await runs.start("a")
    problem = Problem(reason=Reason.NAMESPACE_NOT_TENANT, message="no tenant")
    runs.world.tenancy_problem = lambda _: problem
    runs.clock.advance(7200)
    writes = runs.cluster.writes
    secret = f"get Secret team/{pool(runs)}-rlrun-token"
    runs.cluster.answers[secret] = [ApiError(403, "Forbidden", "no", action="")]
    await runs.reconcile_pools()
    lines = [line for content in runs.artifacts.usage.values() for line in content.splitlines()]
    names = sorted({UsageRecord.model_validate_json(line).name for line in lines})
    assert (names, len(lines)) == ([pool(runs), f"{pool(runs)}-trainer"], 4)
    assert runs.cluster.writes == writes
    runs.cluster.answers.clear()


async def test_a_run_whose_old_pods_still_run_takes_no_slot_of_the_new_pool() -> None:
    runs = SharedRuns(model=shared_model(sharing={"mode": "Dedicated", "maxRuns": 1}))
    await runs.start("a")
    runs.change_model(sharing={"mode": "Namespace", "maxRuns": 1})
    await runs.start("b")
    runs.hold_pods()
    await runs.ask("a", suspend=True)
    await runs.ask("a", suspend=False)
    assert runs.pool_of("a") is None
    runs.end_pods()
    await runs.settle()
    assert runs.status("a")["reason"] == "PoolFull"
    assert [run.uid for run in runs.order(pool(runs, "b")).runs] == ["uid-team-b"]
