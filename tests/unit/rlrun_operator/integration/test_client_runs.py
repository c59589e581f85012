"""Life of runs with `driver: Client`: they have no pods, and the trainer of their pool tells how they go."""

import base64
import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.artifact import expiry_text
from rlrun.constants import Reason
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.protocol.client_run import SILENT_SECONDS, client_token
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import ClientActivity
from rlrun.protocol.trainer import SessionSpec

from tests.support.cluster_objects import STORAGE_KEY, checkpoint_object
from tests.support.expectations import present
from tests.support.fake_artifacts import manifest
from tests.support.shared_pools import SharedRuns, shared_model

CLIENT: Obj = {"driver": "Client", "env": [], "maxSteps": 100, "sampling": {}}
SOURCE = "s3://rlrun/team/uid-source/checkpoints/step-000003"


@pytest.fixture
def runs() -> SharedRuns:
    return SharedRuns()


def session(name: str = "a", **facts: Any) -> ClientActivity:
    known = {"is_open": True, "calls": 0, "updates": 0, "saves": 0, "silent_seconds": 0.0}
    return ClientActivity(uid=f"uid-team-{name}", **(known | facts))


async def start(runs: SharedRuns, *names: str, **spec: Any) -> None:
    """The runs are created, the pods of their pool are ready, and the trainer has opened the sessions."""
    await runs.start(*names, **(CLIENT | spec))
    for name in names:
        await report(runs, name)


async def report(runs: SharedRuns, name: str = "a", **facts: Any) -> None:
    """The trainer reports the state of a session, and everything settles."""
    runs.sidecars.clients = [s for s in runs.sidecars.clients if s.uid != f"uid-team-{name}"]
    runs.sidecars.clients.append(session(name, **facts))
    await runs.reconcile_pools()
    await runs.settle()


def shown(runs: SharedRuns, name: str = "a") -> tuple[str | None, str | None]:
    return runs.status(name).get("phase"), runs.status(name).get("reason")


def ordered(runs: SharedRuns) -> list[str]:
    """Names of the runs in the newest order of the trainer."""
    (order,) = runs.sidecars.trainers.values()
    return [run.uid.removeprefix("uid-team-") for run in order.runs]


def ordered_session(runs: SharedRuns, name: str = "a") -> SessionSpec:
    order = runs.trainer_order(present(runs.pool_of(name)))
    return present(next(run.client for run in order.runs if run.uid == f"uid-team-{name}"))


async def test_a_run_has_no_object_but_its_configuration(runs: SharedRuns) -> None:
    await start(runs, "a")
    assert [obj["kind"] for obj in runs.cluster.objects.values() if is_of(obj, "a")] == ["ConfigMap"]
    assert shown(runs) == ("Running", None)
    for kind in ("TrainerReady", "InferenceReady", "EnvironmentsReady", "OrchestratorReady", "Running"):
        assert runs.condition("a", kind)["status"] == "True"
    assert runs.status("a")["resolved"]["gpus"] == 0


def is_of(obj: Obj, name: str) -> bool:
    return bool((obj["metadata"].get("labels") or {}).get("rlrun.dev/run") == name)


async def test_both_orders_have_the_runs_token_and_the_trainer_its_session(runs: SharedRuns) -> None:
    runs.cluster.put(checkpoint_object("source-step-3", 3, SOURCE, run="source", uid="uid-source"))
    runs.artifacts.folders[SOURCE] = runs.world.artifacts.folders[SOURCE] = manifest(3)
    await start(runs, "a", lora={"rank": 4}, seed=7, checkpointId="source-step-3", checkpointOptimizer=False)
    found = ordered_session(runs)
    assert (found.run_uri, found.run_uid, found.namespace) == ("s3://rlrun/team/uid-team-a", "uid-team-a", "team")
    assert (found.lora.rank, found.seed, found.max_steps, found.resume_from) == (4, 7, 1_000_000, None)
    assert (found.warm_start_from, found.warm_start_optimizer) == (SOURCE, False)
    assert found.warm_start_digest == runs.config("a")["warmStartDigest"]
    digest = hashlib.sha256(client_token(STORAGE_KEY, "uid-team-a").encode()).hexdigest()
    pool = present(runs.pool_of("a"))
    assert [run.token_digest for run in runs.trainer_order(pool).runs] == [digest]
    assert [run.token_digest for run in runs.order(pool).runs] == [digest]


async def test_a_changed_configuration_gives_no_session_of_another_run(runs: SharedRuns) -> None:
    await start(runs, "a", "b")
    write_config(runs, artifacts={"runUri": "s3://rlrun/other/uid", "environmentsUri": "s3://rlrun/environments"})
    await runs.reconcile_pools()
    assert ordered_session(runs).run_uri == "s3://rlrun/team/uid-team-a"
    write_config(runs, warmStartFrom="s3://rlrun/other/uid/checkpoints/step-000001")
    await runs.reconcile_pools()
    assert ordered(runs) == ["b"]
    await runs.settle()
    assert shown(runs) == ("Pending", "Restarting")
    assert "a-config does not have the operator's signature" in runs.status("a")["message"]
    await runs.settle(after=30)
    assert (runs.status("a")["attempt"], ordered(runs)) == (2, ["a", "b"])
    assert ordered_session(runs).warm_start_from is None


@pytest.mark.parametrize(
    "change", [{"seqLen": 8192}, {"lora": {"rank": 512}}, {"trainer": {"microBatchTokens": 10**6}}]
)
async def test_a_user_cannot_enlarge_what_the_trainer_computes(runs: SharedRuns, change: Obj) -> None:
    await start(runs, "a")
    before = ordered_session(runs)
    model = runs.config("a")["model"]
    merged = {k: {**model[k], **v} if isinstance(v, dict) else v for k, v in change.items()}
    write_config(runs, model={**model, **merged})
    await runs.reconcile_pools()
    assert ordered(runs) == []
    await runs.settle()
    await runs.settle(after=30)
    assert ordered_session(runs) == before


async def test_the_order_in_the_secret_has_no_fields_that_are_none(runs: SharedRuns) -> None:
    """A process of a former version refuses unknown fields when it starts."""
    await runs.start("a")
    data = runs.cluster.held("Secret", f"{runs.pool_of('a')}-rlrun-token")["data"]
    (ordered_run,) = json.loads(base64.b64decode(data["trainer-order.json"]))["runs"]
    assert "client" not in ordered_run


def write_config(runs: SharedRuns, **changes: Any) -> None:
    """A user changes the configuration of the attempt."""
    stored = runs.cluster.held("ConfigMap", "a-config")
    runs.cluster.put({**stored, "data": {"run.json": json.dumps({**runs.config("a"), **changes})}})


@pytest.mark.parametrize(
    ("model", "spec", "why"),
    [
        (shared_model(sharing={"mode": "Dedicated"}), {}, "`sharing.mode` Dedicated"),
        (shared_model(trainer={"gpus": 2}), {}, "several GPUs or nodes"),
        (shared_model(), {"infrastructure": {"dedicated": True}}, "`spec.infrastructure.dedicated` is true"),
    ],
)
async def test_a_run_waits_for_a_usable_pool_until_its_start_deadline(model: Obj, spec: Obj, why: str) -> None:
    runs = SharedRuns(model=model)
    runs.add("a", **CLIENT, startDeadlineSeconds=60)
    # As a run that an earlier version accepted.
    stored = runs.run("a")
    runs.cluster.put({**stored, "spec": {**stored["spec"], **spec}, "status": {"resolved": {"gpus": 0}}})
    await runs.settle()
    assert shown(runs) == ("Pending", "ClientNeedsPool")
    assert why in runs.status("a")["message"]
    assert runs.cluster.all("ConfigMap", "Deployment", "Job") == []
    await runs.settle(after=61)
    assert shown(runs) == ("Failed", "ClientNeedsPool")


async def test_a_run_without_a_platform_key_for_tokens_waits(runs: SharedRuns) -> None:
    runs.world.token_key = None
    await runs.arrive("a", **CLIENT)
    assert shown(runs) == ("Pending", "ClientNeedsPool")


async def test_a_run_beyond_the_slots_of_its_pool_is_queued(runs: SharedRuns) -> None:
    await start(runs, "a", "b")
    await runs.arrive("c", **CLIENT)
    assert shown(runs, "c") == ("Queued", "PoolFull")
    assert "dedicated" not in runs.status("c")["message"]
    assert ordered(runs) == ["a", "b"]
    await report(runs, "a", silent_seconds=SILENT_SECONDS)
    assert runs.phases("a", "b", "c") == ["Running", "Running", "Queued"], "an attempt cannot be silent for longer"
    await runs.settle(after=SILENT_SECONDS)
    await report(runs, "b")
    assert shown(runs, "a") == ("Suspended", "ClientSilent")
    assert ordered(runs) == ["b", "c"]


async def test_a_run_is_running_once_its_session_is_open(runs: SharedRuns) -> None:
    await runs.start("a", **CLIENT)
    assert shown(runs) == ("Pending", "WaitingForTrainer")
    problem = Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message="a file is missing")
    await report(runs, is_open=False, problem=problem)
    assert shown(runs) == ("Pending", "CheckpointIncomplete")
    await report(runs)
    assert shown(runs) == ("Running", None)
    await report(runs, problem=Problem(reason=Reason.S3_UNREACHABLE, message="no answer"))
    assert shown(runs) == ("Running", None)
    assert runs.condition("a", "Warnings")["reason"] == "S3Unreachable"
    await report(runs)
    assert runs.condition("a", "Warnings")["status"] == "False"


async def test_the_trainer_is_asked_often_until_a_new_session_is_open(runs: SharedRuns) -> None:
    await runs.start("a", **CLIENT)
    assert await runs.reconcile_pools() == 2.0
    await report(runs)
    assert (await runs.reconcile_pools() or 0.0) > 2.0
    runs.sidecars.clients = []
    await runs.start("b", **CLIENT)
    assert await runs.reconcile_pools() == 2.0
    runs.world.clock.advance(120)
    assert (await runs.reconcile_pools() or 0.0) > 2.0


async def test_a_session_that_does_not_open_fails_the_run_at_its_start_deadline(runs: SharedRuns) -> None:
    await runs.start("a", **CLIENT, startDeadlineSeconds=60)
    await runs.settle(after=61)
    assert shown(runs) == ("Failed", "WaitingForTrainer")


async def test_updates_are_the_progress_and_no_pause_of_the_client_ends_the_run(runs: SharedRuns) -> None:
    await start(runs, "a", stallDeadlineSeconds=60)
    await report(runs, updates=4)
    assert runs.status("a")["progress"]["step"] == 4
    seen = runs.status("a")["progress"]["lastStepTime"]
    await runs.settle(after=300)
    await report(runs, updates=4, silent_seconds=290)
    assert shown(runs) == ("Running", None)
    assert runs.status("a")["progress"]["lastStepTime"] == seen
    # The trainer has restarted.
    await report(runs, is_open=False)
    assert (shown(runs), runs.status("a")["progress"]["step"]) == (("Running", "PoolRestarting"), 4)
    await report(runs, updates=3)
    assert (shown(runs), runs.status("a")["progress"]["step"]) == (("Running", None), 3)


async def test_the_active_deadline_ends_a_run(runs: SharedRuns) -> None:
    await start(runs, "a", activeDeadlineSeconds=600)
    await runs.settle(after=601)
    assert shown(runs) == ("Failed", "ActiveDeadlineExceeded")
    assert ordered(runs) == []


@pytest.mark.parametrize("has_informers", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_silent_run_is_suspended_and_resumes_with_a_new_clock(
    runs: SharedRuns, is_open: bool, has_informers: bool
) -> None:
    if has_informers:
        runs.world.follow()
    await runs.start("a", **CLIENT)
    await report(runs, is_open=is_open)
    await runs.settle(after=SILENT_SECONDS)
    runs.sidecars.sessions = ["uid-team-a"]
    await report(runs, is_open=is_open, silent_seconds=SILENT_SECONDS)
    assert runs.run("a")["spec"]["suspend"] is True
    assert (shown(runs), runs.condition("a", "Running")["reason"]) == (("Suspended", "Finishing"), "ClientSilent")
    assert (runs.place("a"), ordered(runs), runs.cluster.all("ConfigMap")) == ({}, [], [])
    runs.sidecars.sessions = []
    await runs.reconcile_pools()
    await runs.settle()
    await runs.settle(after=60)
    assert shown(runs) == ("Suspended", "ClientSilent")
    # rlrun-server resumes the run while the trainer's last response is the one from before.
    runs.sidecars.is_silent = True
    await runs.ask("a", suspend=False)
    runs.sidecars.is_silent = False
    await runs.settle(after=60)
    await report(runs, silent_seconds=30)
    assert shown(runs) == ("Running", None)
    assert (runs.run("a")["spec"]["suspend"], runs.status("a")["attempt"], ordered(runs)) == (False, 2, ["a"])


async def test_a_run_that_a_user_suspends_is_not_silent(runs: SharedRuns) -> None:
    await start(runs, "a")
    await runs.ask("a", suspend=True)
    await runs.settle()
    assert shown(runs) == ("Suspended", "Suspended")


async def test_a_trainer_that_does_not_respond_says_nothing_about_the_client(runs: SharedRuns) -> None:
    await start(runs, "a")
    runs.sidecars.is_silent = True
    await runs.settle(after=2 * SILENT_SECONDS)
    assert shown(runs) == ("Running", None)


async def test_a_client_may_have_called_since_an_old_response(runs: SharedRuns) -> None:
    await start(runs, "a")
    await runs.settle(after=SILENT_SECONDS)
    runs.sidecars.clients = [session(silent_seconds=SILENT_SECONDS)]
    await runs.reconcile_pools()
    runs.sidecars.is_silent = True
    await runs.settle(after=60)
    assert shown(runs) == ("Running", None)
    runs.sidecars.is_silent = False
    await report(runs, silent_seconds=SILENT_SECONDS + 60)
    assert shown(runs) == ("Suspended", "ClientSilent")


@pytest.mark.parametrize("is_silent", [False, True])
async def test_an_interrupted_suspension_is_repeated_unless_the_client_has_called(
    runs: SharedRuns, is_silent: bool
) -> None:
    await start(runs, "a")
    await runs.settle(after=SILENT_SECONDS)
    runs.sidecars.clients = [session(silent_seconds=SILENT_SECONDS)]
    await runs.reconcile_pools()
    runs.cluster.answers["change RLRun team/a"] = [ApiError(500, "InternalError", "no", action="")]
    with pytest.raises(ApiError):
        await runs.look("a")
    runs.cluster.answers.clear()
    assert runs.condition("a", "Running")["reason"] == "ClientSilent"
    await report(runs, silent_seconds=SILENT_SECONDS if is_silent else 1.0)
    assert runs.phases("a") == ["Suspended" if is_silent else "Running"]
    assert runs.run("a")["spec"].get("suspend", False) is is_silent


async def test_a_new_operator_changes_nothing_of_a_run(runs: SharedRuns) -> None:
    await start(runs, "a")
    await report(runs, updates=4)
    before = runs.run("a")
    runs.restart()
    runs.world.pool_trainers.clear()
    await runs.look("a")
    await runs.settle()
    assert runs.run("a") == before


async def test_a_user_who_resumes_a_run_at_once_takes_precedence(runs: SharedRuns) -> None:
    await start(runs, "a")
    await runs.settle(after=SILENT_SECONDS)
    runs.sidecars.clients = [session(silent_seconds=SILENT_SECONDS)]
    await runs.reconcile_pools()
    await runs.look("a")
    assert (runs.run("a")["spec"]["suspend"], runs.phases("a")) == (True, ["Running"])
    runs.sidecars.clients = [session(silent_seconds=1)]
    runs.change("a", suspend=False)
    await runs.reconcile_pools()
    await runs.settle()
    assert (shown(runs), runs.status("a")["attempt"]) == (("Running", None), 1)


async def test_a_run_that_ended_its_trainer_fails(runs: SharedRuns) -> None:
    await start(runs, "a", "b")
    await report(runs, is_open=False, problem=Problem(reason=Reason.POOL_EVICTED, message="Out of memory."))
    assert shown(runs) == ("Failed", "PoolEvicted")
    assert (runs.status("a")["poolEvicted"], ordered(runs)) == (True, ["b"])


async def test_a_stopped_run_has_the_last_checkpoint_of_the_trainer(runs: SharedRuns) -> None:
    await start(runs, "a", ttlSecondsAfterFinished=3600)
    runs.sidecars.sessions = ["uid-team-a"]
    await runs.ask("a", stop=True)
    assert (shown(runs), ordered(runs)) == (("Stopped", "Stopped"), [])
    assert await runs.look("a") == 2.0
    runs.world.artifacts.folders["s3://rlrun/team/uid-team-a/checkpoints/step-000012"] = manifest(12)
    runs.sidecars.sessions = []
    await runs.reconcile_pools()
    await runs.settle()
    assert [obj["spec"]["step"] for obj in runs.cluster.all("RLCheckpoint")] == [12]
    assert runs.cluster.all("ConfigMap") == []
    await runs.settle(after=3601)
    assert runs.cluster.all("RLRun") == []


@pytest.mark.parametrize("how", ["stop", "suspend"])
async def test_artifacts_of_a_run_that_does_not_train_are_deleted_when_they_expire(runs: SharedRuns, how: str) -> None:
    await start(runs, "a")
    soon = (runs.clock() + timedelta(hours=2)).isoformat()
    for step in (3, 4, 9):
        details: dict[str, Any] = {} if step == 3 else {"expiresAt": soon}
        uri = f"s3://rlrun/team/uid-team-a/checkpoints/step-{step:06d}"
        runs.world.artifacts.folders[uri] = manifest(step, **details)
    await report(runs, saves=3)
    runs.sidecars.clients = []
    await runs.ask("a", **{how: True}, checkpoints={"keepCloud": -1})
    assert present(await runs.look("a")) == pytest.approx(7200, abs=60)
    await runs.settle(after=7201)
    assert [obj["spec"]["step"] for obj in runs.cluster.all("RLCheckpoint")] == [3, 9], "the newest one is kept"
    assert await runs.look("a") is None


async def test_an_artifact_that_a_user_lets_expire_is_deleted_with_its_files(runs: SharedRuns) -> None:
    await start(runs, "a")
    folder = "s3://rlrun/team/uid-team-a/checkpoints/step-{:06d}"
    far = (runs.clock() + timedelta(hours=2)).isoformat()
    for step in (3, 9):
        runs.world.artifacts.folders[folder.format(step)] = manifest(step, expiresAt=far)
    await report(runs, saves=2)
    first, newest = sorted(runs.cluster.all("RLCheckpoint"), key=lambda obj: obj["spec"]["step"])
    soon = expiry_text(runs.clock())
    for obj in (first, newest):
        runs.cluster.put({**obj, "spec": {**obj["spec"], "expiresAt": soon}})
    await runs.look("a", "a", "a")
    left = runs.cluster.all("RLCheckpoint")
    assert [(obj["spec"]["step"], obj["status"]["expiresAt"]) for obj in left] == [(9, soon)]
    assert folder.format(3) not in runs.world.artifacts.folders
    runs.sidecars.clients = []
    await runs.ask("a", stop=True)
    await runs.settle()
    assert runs.cluster.all("RLCheckpoint") == []
    assert folder.format(9) not in runs.world.artifacts.folders


async def test_a_deleted_run_leaves_the_order(runs: SharedRuns) -> None:
    await start(runs, "a", "b")
    runs.cluster.request_deletion(runs.run("a"))
    await runs.settle()
    assert ordered(runs) == ["b"]


async def test_artifacts_are_listed_when_the_trainer_has_saved_one(runs: SharedRuns) -> None:
    runs.world.follow()
    await start(runs, "a")
    await report(runs, updates=200)
    before = runs.world.artifacts.lists
    await runs.look("a", "a")
    assert runs.world.artifacts.lists == before, "no interval of steps applies"
    runs.world.artifacts.folders["s3://rlrun/team/uid-team-a/checkpoints/step-000401"] = manifest(401)
    await report(runs, updates=200, saves=1)
    assert [obj["spec"]["step"] for obj in runs.cluster.all("RLCheckpoint")] == [401]


async def test_a_change_of_a_session_queues_its_run(runs: SharedRuns) -> None:
    await runs.start("a", "b", **CLIENT)
    for facts, awaited in (
        ({"is_open": False}, {"a": 0.0}),
        ({"is_open": False, "silent_seconds": 15.0}, {}),
        ({}, {"a": 0.0}),
        ({"updates": 1, "calls": 2}, {"a": 30.0}),
        ({"updates": 1, "calls": 3}, {}),
        ({"updates": 2, "saves": 1}, {"a": 0.0}),
        ({"updates": 2, "saves": 1, "silent_seconds": SILENT_SECONDS}, {"a": 0.0}),
    ):
        runs.sidecars.clients = [session(**facts)]
        await runs.reconcile_pools()
        assert runs.awaited == awaited


async def test_a_run_in_which_nothing_happens_is_reconciled_every_minute(runs: SharedRuns) -> None:
    await start(runs, "a")
    assert 45.0 <= present(await runs.look("a")) <= 75.0


async def test_a_pool_that_lost_its_deployments_is_replaced(runs: SharedRuns) -> None:
    await start(runs, "a")
    old = present(runs.pool_of("a"))
    runs.change_model(seqLen=128)
    del runs.cluster.objects["Deployment", "team", f"{old}-trainer"]
    await runs.look("a")
    assert shown(runs) == ("Pending", "Restarting")
    runs.sidecars.clients = []
    del runs.cluster.objects["Pod", "team", runs.trainer()["metadata"]["name"]]
    await runs.settle(after=30)
    assert runs.pool_of("a") != old
    assert (runs.status("a")["attempt"], runs.status("a").get("runRestartsTowardMax", 0)) == (2, 0)
