"""What the reconciler reads, what it decides on that, and which runs it has settled."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import FIELD_MANAGER, FINALIZER
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import label
from rlrun.kube.requests import Verb
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun_operator.controller.reconciler import NAME_TIME, Reconciler, needs_confirmation
from rlrun_operator.operator_process import Operator
from rlrun_operator.planning.actions import Plan
from rlrun_operator.planning.observation import RunKey
from typing_extensions import override

from tests.support.clocks import START
from tests.support.cluster_objects import model_object, run_object, terminated
from tests.support.fake_artifacts import manifest
from tests.support.fake_cluster import copied
from tests.support.fake_kubelet import end_orchestrator, step_kubelet
from tests.support.fake_poller import FakePoller
from tests.support.informer_feed import InformerFeed
from tests.support.operator_world import World

KEY = RunKey("team", "reverse")
ROOT = "s3://rlrun/team/uid-1"


async def completed(world: World) -> Reconciler:
    """An operator that has looked at the run until nothing was left to do."""
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000010"] = manifest(10)
    last = RunStatus(phase=RunPhase.completed, step=10, max_steps=10)
    end_orchestrator(world.cluster, 0, last.model_dump_json(by_alias=True))
    await world.reconcile(3)
    assert world.status["phase"] == "Completed"
    operator = world.reconciler()
    await operator.reconcile(KEY)
    return operator


def is_settled(operator: Reconciler, world: World) -> bool:
    return operator.is_settled(KEY, world.run["metadata"]["resourceVersion"])


async def test_a_run_is_settled_when_it_has_finished_and_all_is_done(world: World) -> None:
    operator = world.reconciler()
    for _ in range(3):
        await operator.reconcile(KEY)
    assert not is_settled(operator, world), "it is active"
    assert is_settled(await completed(world), world)


@pytest.mark.parametrize("change", ["spec", "children", "files", "gone"])
async def test_a_settled_run_that_changes_is_looked_at_until_it_is_settled_again(world: World, change: str) -> None:
    operator = await completed(world)
    if change == "spec":
        world.change_spec(checkpoints={"keepCloud": 2})
        assert not is_settled(operator, world), "before the look already"
        return
    if change == "gone":
        del world.cluster.objects["RLRun", "team", "reverse"]
        await operator.reconcile(KEY)
        assert not operator.is_settled(KEY, "")
        return
    if change == "children":
        labels = {"rlrun.dev/run": "reverse", "rlrun.dev/run-uid": "uid-1"}
        metadata = {"name": "reverse-trainer", "namespace": "team", "labels": labels}
        world.cluster.put({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": {}})
    else:
        world.artifacts.folders[f"{ROOT}/checkpoints/step-000010"] = manifest(10, size=50)
    await operator.reconcile(KEY)
    assert not is_settled(operator, world)
    for _ in range(2):
        await operator.reconcile(KEY)
    assert is_settled(operator, world)


async def test_a_run_whose_checkpoint_another_run_starts_from_is_not_settled(world: World) -> None:
    world.change_spec(checkpoints={"keepCloud": 1})
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000003"] = manifest(3)
    await world.start()
    (checkpoint,) = world.cluster.all("RLCheckpoint")
    world.cluster.put(run_object("second", uid="uid-2", checkpointId=checkpoint["metadata"]["name"]))
    operator = await completed(world)
    assert [o["spec"]["step"] for o in world.cluster.all("RLCheckpoint")] == [3, 10]
    assert not is_settled(operator, world), "retention must notice the end of the other run"
    del world.cluster.objects["RLRun", "team", "second"]
    for _ in range(3):
        await operator.reconcile(KEY)
    assert [o["spec"]["step"] for o in world.cluster.all("RLCheckpoint")] == [10]
    assert is_settled(operator, world)


async def test_retention_reads_only_runs_that_start_from_a_checkpoint(world: World) -> None:
    world.change_spec(checkpoints={"keepCloud": 1})
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000003"] = manifest(3)
    await completed(world)
    assert [o["spec"]["step"] for o in world.cluster.all("RLCheckpoint")] == [10]
    selectors = [r.query.get("fieldSelector") for r in world.cluster.requests if str(r) == "list rlruns"]
    assert selectors
    assert set(selectors) == {"spec.checkpointId!="}


async def test_a_run_with_checkpoints_to_delete_is_not_settled_while_the_other_runs_are_unknown(world: World) -> None:
    world.change_spec(checkpoints={"keepCloud": 1})
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000003"] = manifest(3)
    world.cluster.answers["list rlruns"] = [ApiError(500, "InternalError", "etcd is slow")]
    operator = await completed(world)
    assert [o["spec"]["step"] for o in world.cluster.all("RLCheckpoint")] == [3, 10]
    assert not is_settled(operator, world)
    del world.cluster.answers["list rlruns"]
    for _ in range(3):
        await operator.reconcile(KEY)
    assert [o["spec"]["step"] for o in world.cluster.all("RLCheckpoint")] == [10]
    assert is_settled(operator, world)


async def queued(world: World, known: Reconciler | None) -> set[str]:
    """Return the runs that the periodic resync of an operator queues now."""
    operator = Operator(world.settings)
    await operator._queue_runs(InformerFeed(world.cluster).informers, known)
    return {operator._queue._take().name for _ in range(len(operator._queue))}  # type: ignore[union-attr]


async def test_the_resync_queues_the_runs_that_are_not_settled(world: World) -> None:
    reconciler = await completed(world)
    world.cluster.put(run_object("second", uid="uid-2"))
    assert await queued(world, reconciler) == {"second"}
    assert await queued(world, None) == {"reverse", "second"}


async def test_settled_runs_do_not_delay_one_that_ended_long_ago_and_is_not_settled(world: World) -> None:
    reconciler = await completed(world)
    old = run_object("second", uid="uid-2")
    old["status"] = {"phase": "Completed", "completionTime": "2020-01-01T00:00:00Z"}
    world.cluster.put(old)
    assert await queued(world, reconciler) == {"second"}


# --- stored objects ---------------------------------------------------------------------------------------------------


def status(step: int) -> RunStatus:
    return RunStatus(phase=RunPhase.running, step=step, max_steps=100, reward=0.5, started_at=START)


@pytest.fixture
async def quiet(world: World) -> World:
    """A world with a run that trains, and an operator that has nothing to do."""
    world.follow()
    await world.start()
    world.poller.watches = True
    world.poller.answer = status(1)
    await world.reconcile(4)
    assert world.condition("Running")["status"] == "True"
    world.cluster.requests.clear()
    world.artifacts.lists = 0
    return world


async def test_a_look_at_a_run_in_which_nothing_happens_reads_nothing(quiet: World) -> None:
    for _ in range(3):
        await quiet.reconcile()
    assert quiet.cluster.calls == []
    assert quiet.artifacts.lists == 0


async def test_progress_costs_one_write(quiet: World) -> None:
    for step in (2, 3, 4):
        quiet.poller.answer = status(step)
        await quiet.reconcile()
        assert quiet.status["progress"]["step"] == step
        assert quiet.cluster.calls == ["apply the status of RLRun team/reverse"]
        quiet.cluster.requests.clear()
    assert quiet.artifacts.lists == 0


async def test_s3_is_listed_while_an_upload_is_due(quiet: World) -> None:
    quiet.change_spec(checkpoints={"interval": 5})
    await quiet.reconcile(3)
    for step, lists in ((4, 0), (5, 3), (6, 3)):
        quiet.poller.answer = status(step)
        quiet.artifacts.lists = 0
        await quiet.reconcile(3)
        assert quiet.artifacts.lists == lists, step
    quiet.artifacts.folders[f"{ROOT}/checkpoints/step-000005"] = manifest(5)
    await quiet.reconcile(2)
    assert [c["spec"]["step"] for c in quiet.cluster.all("RLCheckpoint")] == [5]
    quiet.artifacts.lists = 0
    await quiet.reconcile(3)
    assert quiet.artifacts.lists == 0


async def test_a_list_of_s3_that_is_kept_deletes_nothing(quiet: World) -> None:
    """Retention would delete the older of two checkpoints; of the newer one the files are gone by now."""
    quiet.change_spec(checkpoints={"interval": 5, "keepCloud": 1})
    first, second = (f"{ROOT}/checkpoints/step-{step:06}" for step in (5, 10))
    quiet.artifacts.folders[first] = manifest(5)
    quiet.poller.answer = status(5)
    await quiet.reconcile(4)
    quiet.artifacts.folders[second] = manifest(10)
    quiet.poller.answer = status(10)
    kept = await quiet.reconciler()._observer.observe("team", "reverse")
    assert kept is not None
    assert kept.catalog.has_deletions
    del quiet.artifacts.folders[second]
    await quiet.reconcile(4)
    assert quiet.artifacts.folders == {first: manifest(5)}


async def test_no_object_is_created_for_deleted_files_when_more_checkpoints_are_kept(quiet: World) -> None:
    """An older list of S3 still has the files, and retention no longer deletes them."""
    quiet.change_spec(maxSteps=100, checkpoints={"interval": 5, "keepCloud": 1})
    first, second = (f"{ROOT}/checkpoints/step-{step:06}" for step in (5, 10))
    for step, folder in ((5, first), (10, second)):
        quiet.artifacts.folders[folder] = manifest(step)
        quiet.poller.answer = status(step)
        await quiet.reconcile(2)
    for _ in range(6):
        if first not in quiet.artifacts.folders:
            break
        await quiet.reconcile()
    assert list(quiet.artifacts.folders) == [second]
    quiet.change_spec(checkpoints={"interval": 5, "keepCloud": 2})
    await quiet.reconcile()
    assert [c["spec"]["step"] for c in quiet.cluster.all("RLCheckpoint")] == [10]


def reads(world: World) -> list[str]:
    """The reads since the last call."""
    found = [str(request) for request in world.cluster.requests if request.verb in (Verb.GET, Verb.LIST)]
    world.cluster.requests.clear()
    return found


async def test_the_first_look_at_a_listed_run_lists_no_children(world: World) -> None:
    world.follow()
    await world.reconcile()
    assert sorted(reads(world)) == ["get Secret rlrun-system/s3", "list rlmodels"]
    await world.reconcile()
    assert reads(world) == []
    assert len(world.cluster.all("ReplicaSet", "Job")) == 4


async def later(world: World, *names: str) -> None:
    """Create runs after another one, whose looks have read and written everything of it."""
    world.follow()
    await world.reconcile(2)
    for name in names:
        world.cluster.put(run_object(name, uid=f"uid-{name}"))
    reads(world)


async def test_runs_that_come_together_read_what_they_share_once(world: World) -> None:
    await later(world, "second", "third")
    await world.reconcile(name="second")
    assert reads(world) == ["get Secret rlrun-system/s3", "list rlmodels"]
    await world.reconcile(name="third")
    assert reads(world) == ["get Secret rlrun-system/s3"], "at most one in a second"
    assert {label(obj, "rlrun.dev/run") for obj in world.cluster.all("Job")} == {"reverse", "second", "third"}


async def test_a_run_starts_from_a_model_that_was_changed_before_it(world: World) -> None:
    """Also if the watch of models has not told of the change."""
    await later(world, "second")
    assert world.feed is not None
    world.feed.deliver()
    world.cluster.put(model_object(seqLen=128))
    world.feed.forget_changes()
    await world.reconcile(name="second")
    config = world.cluster.find("ConfigMap", "second-config")
    assert config is not None
    assert '"seqLen": 128' in config["data"]["run.json"]


async def test_the_pods_of_the_last_run_with_the_name_are_read_before_the_next_begins(world: World) -> None:
    """Their watch may lag behind: a run was deleted, and its pods terminate, before it has shown them."""
    world.follow()
    await world.reconcile(2)
    step_kubelet(world.cluster)
    assert world.feed is not None
    world.feed.forget_changes()
    for key, obj in list(world.cluster.objects.items()):
        if obj["kind"] == "RLRun" or (label(obj, "rlrun.dev/run") == "reverse" and obj["kind"] != "Pod"):
            del world.cluster.objects[key]
    await world.reconcile()
    world.cluster.put(run_object(uid="uid-9"))
    await world.reconcile(2)
    assert world.cluster.all("ReplicaSet", "Job") == []


async def test_a_look_after_one_that_failed_reads_what_it_decides_on(world: World) -> None:
    await later(world, "second")
    world.cluster.answers["apply Job team/second-orchestrator-a1"] = [ApiError(500, "Internal", "broken")]
    with pytest.raises(ApiError):
        await world.reconcile(name="second")
    run = world.cluster.find("RLRun", "second")
    assert run is not None
    assert "status" not in run
    # It is suspended, and its watch does not tell.
    world.cluster.put({**run, "spec": {**run["spec"], "suspend": True}})
    assert world.feed is not None
    world.feed.forget_changes()
    await world.reconcile(name="second")
    assert [obj for obj in world.cluster.all("Job") if label(obj, "rlrun.dev/run") == "second"] == []


async def test_a_new_run_that_another_process_has_begun_is_read(world: World) -> None:
    await later(world, "second")
    assert world.feed is not None
    world.feed.deliver()
    world.cluster.put(run_object("second", uid="uid-second") | {"status": {"phase": "Pending", "attempt": 1}})
    await world.reconcile(name="second")
    assert "list pods in namespace team" in reads(world)


async def test_a_new_run_that_is_being_deleted_is_read(world: World) -> None:
    await later(world)
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]}
    run = run_object("second", uid="uid-2")
    world.cluster.put(run)
    assert world.feed is not None
    world.feed.deliver()
    world.cluster.put({**run, "metadata": {**run["metadata"], **metadata}})
    await world.reconcile(name="second")
    assert "list pods in namespace team" in reads(world)


async def test_pods_of_a_run_whose_attempt_was_withdrawn_are_read(world: World) -> None:
    await later(world)
    world.cluster.put(run_object("second", uid="uid-2") | {"status": {"phase": "Pending", "attempt": 1}})
    await world.reconcile(name="second")
    assert "list pods in namespace team" in reads(world)


async def test_the_secret_of_a_new_run_is_read_if_something_of_an_earlier_one_is_left(world: World) -> None:
    await later(world)
    labels = {"rlrun.dev/run": "second", "rlrun.dev/run-uid": "uid-0", "app.kubernetes.io/managed-by": FIELD_MANAGER}
    metadata = {"name": "second-config", "namespace": "team", "labels": labels}
    world.cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}})
    world.cluster.put(run_object("second", uid="uid-2"))
    await world.reconcile(name="second")
    assert "get Secret team/second-rlrun-token" in reads(world)


@pytest.mark.parametrize("kind", ["Pod", "Secret"])
async def test_a_new_run_finds_what_is_left_of_an_earlier_one_with_its_name(world: World, kind: str) -> None:
    await later(world)
    labels = {"rlrun.dev/run": "second", "rlrun.dev/run-uid": "uid-0", "app.kubernetes.io/managed-by": FIELD_MANAGER}
    name = "second-trainer-0" if kind == "Pod" else "second-rlrun-token"
    metadata = {"name": name, "namespace": "team", "labels": labels, "finalizers": ["a/b"]}
    left = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": {}, "status": {"phase": "Running"}}
    world.cluster.put(left)
    world.cluster.put(run_object("second", uid="uid-2"))
    await world.reconcile(2, name="second")
    assert [obj for obj in world.cluster.all("ReplicaSet", "Job") if label(obj, "rlrun.dev/run") == "second"] == []
    found = world.cluster.find(kind, name)
    assert found is not None
    assert label(found, "rlrun.dev/run-uid") == "uid-0"


async def test_a_new_run_waits_for_the_end_of_an_earlier_one_with_its_name(world: World) -> None:
    world.follow()
    labels = {"rlrun.dev/run": "reverse", "rlrun.dev/run-uid": "uid-0", "app.kubernetes.io/managed-by": FIELD_MANAGER}
    metadata = {"name": "reverse-trainer", "namespace": "team", "labels": labels, "finalizers": ["a/b"]}
    world.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {}})
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job") == []
    assert "an earlier run named reverse" in world.status["message"]


async def test_a_run_that_begins_to_train_is_not_read_again(world: World) -> None:
    """Pending and Running follow from what is observed, so stored objects are good enough for them."""
    world.follow()
    await world.start()
    world.poller.watches = True
    await world.reconcile(3)
    assert world.status["phase"] == "Pending"
    world.poller.answer = status(1)
    world.cluster.requests.clear()
    await world.reconcile()
    assert world.status["phase"] == "Running"
    assert [call for call in world.cluster.calls if call.startswith(("get ", "list "))] == []


async def test_a_decision_rests_on_what_is_true_now(quiet: World) -> None:
    quiet.cluster.requests.clear()
    trainer = quiet.cluster.find("Pod", "reverse-trainer-0")
    assert trainer is not None
    broken = copied(trainer)
    broken["status"]["phase"] = "Failed"
    broken["status"]["containerStatuses"][0]["state"] = terminated(1, "Error", "")
    # The operator knows of a broken pod, and not of the one that has replaced it.
    quiet.cluster.put(broken)
    assert quiet.feed is not None
    quiet.feed.deliver()
    quiet.cluster.put(trainer)
    before = quiet.status
    await quiet.reconciler().reconcile(KEY)
    assert "list pods in namespace team" in quiet.cluster.calls, "it has asked again before it decided"
    assert (quiet.status["phase"], quiet.status["attempt"]) == (before["phase"], before["attempt"])
    assert quiet.cluster.find("Pod", "reverse-trainer-0") is not None


async def test_a_change_of_a_run_that_the_watch_has_not_told_costs_one_more_reading(quiet: World) -> None:
    quiet.change_spec(maxSteps=50)
    assert quiet.feed is not None
    quiet.feed.forget_changes()
    write = "apply the status of RLRun team/reverse"
    for step in (2, 3):
        quiet.poller.answer = status(step)
        quiet.cluster.requests.clear()
        await quiet.reconciler().reconcile(KEY)
        assert quiet.status["progress"]["step"] == step
        assert quiet.status["observedGeneration"] == quiet.run["metadata"]["generation"]
        assert quiet.cluster.calls.count(write) == (2 if step == 2 else 1), "the answer has told of the change"


async def test_a_controller_that_has_changed_since_is_not_deleted(quiet: World) -> None:
    """It may have made a pod that the operator has not seen."""
    quiet.change_spec(suspend=True)
    assert quiet.feed is not None
    quiet.feed.deliver()
    for obj in quiet.cluster.all("ReplicaSet"):
        quiet.cluster.put(obj)
    await quiet.reconciler().reconcile(KEY)
    assert len(quiet.cluster.all("ReplicaSet")) == 3
    await quiet.reconcile(2)
    assert quiet.cluster.all("ReplicaSet") == []


async def test_a_decision_does_not_rest_on_an_earlier_status_of_the_orchestrator(quiet: World) -> None:
    observed = await quiet.reconciler()._observer.observe("team", "reverse")
    fresh = await quiet.reconciler()._observer.observe("team", "reverse", is_fresh=True)
    assert observed is not None
    assert fresh is not None
    assert (observed.is_cached, fresh.is_cached) == (True, False)
    before = RLRunStatus.parse(quiet.status)
    for change in ({"attempt": 2}, {"restarts": 1}, {"run_restarts": 1}, {"completion_time": START}):
        assert needs_confirmation(observed, Plan(status=before.model_copy(update=change)), is_new=False), change
    deletion = {"kind": "RLCheckpoint", "status": {"phase": "Deleting"}}
    assert needs_confirmation(observed, Plan(artifact_statuses=(deletion,)), is_new=False)
    assert not needs_confirmation(observed, Plan(), is_new=False)
    placed = {**observed.run["status"], "queue": {"admittedTime": "2026-01-01T00:00:00Z"}}
    observed = replace(observed, run={**observed.run, "status": placed})
    gives_back = Plan(status=RLRunStatus.parse(quiet.status))
    assert needs_confirmation(observed, gives_back, is_new=False), "other runs get its place"
    assert not needs_confirmation(observed, Plan(), is_new=False)


async def test_a_run_whose_orchestrator_does_not_answer_is_not_read_again(quiet: World) -> None:
    """A lost node has many of them. The end of a pod is an event."""
    quiet.poller.answer = None
    await quiet.reconcile(2)
    assert quiet.cluster.calls == []


async def test_a_run_that_ends_leaves_nothing_in_memory_that_only_reconciles_need(quiet: World) -> None:
    objects = quiet.reconciler()._observer._objects
    assert objects._secrets
    quiet.artifacts.folders[f"{ROOT}/checkpoints/step-000010"] = manifest(10)
    last = RunStatus(phase=RunPhase.completed, step=10, max_steps=10)
    end_orchestrator(quiet.cluster, 0, last.model_dump_json(by_alias=True))
    await quiet.reconcile(5)
    assert quiet.status["phase"] == "Completed"
    assert is_settled(quiet.reconciler(), quiet)
    assert not objects._secrets


async def test_names_of_runs_that_are_gone_are_forgotten_without_a_scan_of_all(world: World) -> None:
    compared = 0

    class Time(datetime):
        def __sub__(self, other: Any) -> Any:
            nonlocal compared
            compared += 1
            return super().__sub__(other)

    operator, first = world.reconciler(), Time(2026, 1, 1, tzinfo=UTC)
    ends = [first + number * timedelta(seconds=1) for number in range(1000)]
    for number, end in enumerate(ends):
        operator._names.add(RunKey("team", f"run-{number}"))
        operator._forget_names(RunKey("team", f"run-{number}"), end)
    assert compared <= 2 * len(ends)
    assert len(operator._names) == 1000
    operator._forget_names(RunKey("team", "last"), ends[499] + NAME_TIME + timedelta(milliseconds=1))
    assert RunKey("team", "run-499") not in operator._names
    assert RunKey("team", "run-500") in operator._names
    assert len(operator._gone) == 501


async def test_a_name_that_is_used_again_is_not_forgotten(world: World) -> None:
    operator = world.reconciler()
    await operator.reconcile(RunKey("team", "later"))
    assert RunKey("team", "later") in operator._gone
    world.cluster.put(run_object("later", uid="uid-2"))
    await operator.reconcile(RunKey("team", "later"))
    assert RunKey("team", "later") not in operator._gone
    operator._forget_names(RunKey("team", "other"), world.clock() + 2 * NAME_TIME)
    assert RunKey("team", "later") in operator._names


class AskedPoller(FakePoller):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []
        """`is_fresh` of each request."""

    @override
    async def status(self, key: RunKey, token: str | None = None, *, is_fresh: bool = False) -> RunStatus:
        self.asked.append(is_fresh)
        return await super().status(key, token, is_fresh=is_fresh)


@pytest.mark.parametrize("leaves", [False, True])
async def test_no_decision_waits_for_an_orchestrator_that_is_leaving(world: World, leaves: bool) -> None:
    world.poller = AskedPoller()
    await world.train()
    if leaves:
        pod = world.cluster.held("Pod", "reverse-orchestrator-a1-0")
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.follow()
    world.poller.asked.clear()
    await world.change(stop=True)
    assert world.status["phase"] == "Stopped"
    assert world.poller.asked == [False, not leaves]
