"""Dedicated runs of hosted clients: created from prime-rl's files, paused, resumed as new runs."""

import base64
from typing import Any

import pytest
from rlrun.kube.requests import Verb
from rlrun.storage.layout import S3Uri

from tests.support.hosted_api import MODEL, HostedApi, artifact_object, hosted_api, model_object
from tests.support.rest_api import BUCKET, run_object

CONFIG: dict[str, Any] = {
    "max_steps": 30,
    "model": {"name": MODEL},
    "orchestrator": {
        "batch_size": 8,
        "group_size": 4,
        "train": {"source": [{"env": {"taskset": {"id": "reverse"}}}]},
    },
    "trainer": {"optim": {"lr": 1e-05}},
}


@pytest.fixture
async def api() -> HostedApi:
    found = hosted_api()
    source = {"secretRef": {"name": "paused-env"}}
    spec: dict[str, Any] = {"suspend": True, "envFrom": [source, {"secretRef": {"name": "mine"}}], "maxSteps": 30}
    found.rest.add(
        model_object(),
        run_object("running", number=1),
        run_object("paused", number=2, phase="Suspended", env=[{"id": "team/reverse"}], model=MODEL, **spec),
        run_object("foreign", "other", 9),
    )
    wheel = S3Uri(BUCKET, "prefix/environments/team/reverse/1.0/reverse-1.0-py3-none-any.whl")
    found.store.put_bytes(wheel, b"wheel")
    await found.key()
    return found


def saved(api: HostedApi, *steps: int, phase: str = "Ready") -> None:
    """Let the paused run have checkpoints of these steps."""
    api.rest.add(*(artifact_object("RLCheckpoint", f"paused-step-{step}", step, 2, phase) for step in steps))


def writes(api: HostedApi) -> list[str]:
    return [str(r) for r in api.rest.cluster.requests if r.verb not in (Verb.GET, Verb.LIST)]


async def test_a_run_is_created_from_a_file_of_prime_rl(api: HostedApi) -> None:
    answer = await api.client.post("/training/runs", json={"config": CONFIG, "name": "My", "wandbApiKey": "hidden"})
    assert (answer.status_code, answer.json().pop("tokenValue")) == (200, ""), answer.text
    name = answer.json()["runId"]
    run = api.rest.cluster.objects["RLRun", "team", name]
    assert (run["spec"]["env"], run["spec"]["lora"]) == ([{"id": "team/reverse"}], {"enabled": False})
    secret = api.rest.cluster.objects["Secret", "team", f"{name}-env"]
    assert secret["data"] == {"WANDB_API_KEY": base64.b64encode(b"hidden").decode()}
    assert (await api.client.get(f"/rft/runs/{name}")).json()["run"]["name"] == "My"


async def test_what_the_file_names_must_exist(api: HostedApi) -> None:
    source = {"env": {"taskset": {"id": "none"}}}
    config = {
        **CONFIG,
        "model": {"name": "no/such"},
        "orchestrator": {**CONFIG["orchestrator"], "train": {"source": [source]}},
    }
    answer = await api.client.post("/training/runs", json={"config": config})
    found = {".".join(map(str, each["loc"])) for each in answer.json()["detail"]}
    assert found == {"body.config.model.name", "body.config.orchestrator.train.source.0.env.taskset.id"}
    assert not writes(api)


async def test_pause_suspends_a_run_once(api: HostedApi) -> None:
    for _ in range(2):
        answer = await api.client.post("/training/runs/running/pause")
        assert (answer.status_code, answer.json()) == (200, {"status": "PAUSING"})
    assert api.rest.cluster.objects["RLRun", "team", "running"]["spec"]["suspend"] is True
    assert len(writes(api)) == 1
    assert (await api.client.get("/rft/runs/running")).json()["run"]["status"] == "PAUSING"
    assert (await api.client.get("/rft/runs/paused")).json()["run"]["status"] == "PAUSED"
    assert (await api.client.post("/training/runs/paused/pause")).json() == {"status": "PAUSED"}


@pytest.mark.parametrize("run", [{"phase": "Completed"}, {"stop": True}], ids=str)
async def test_an_ended_run_is_not_paused(api: HostedApi, run: dict[str, Any]) -> None:
    api.rest.add(run_object("tired", number=30, **run))
    answer = await api.client.post("/training/runs/tired/pause")
    assert (answer.status_code, "can be paused" in answer.json()["detail"], writes(api)) == (409, True, [])


async def test_resume_makes_a_new_run_from_the_newest_checkpoint(api: HostedApi) -> None:
    saved(api, 10, 20)
    answer = await api.client.post("/training/runs/paused/resume", json={"wandbApiKey": "hidden"})
    assert answer.status_code == 200, answer.text
    name = answer.json()["runId"]
    assert name != "paused"
    spec = api.rest.cluster.objects["RLRun", "team", name]["spec"]
    assert (spec["checkpointId"], spec["maxSteps"]) == ("paused-step-20", 10), "a run counts its own steps"
    assert [each["secretRef"]["name"] for each in spec["envFrom"]] == ["mine", f"{name}-env"]
    assert not {"suspend", "stop"} & spec.keys()
    assert api.rest.cluster.objects["RLRun", "team", "paused"]["spec"]["suspend"] is True


async def test_a_paused_run_that_is_invalid_by_now_is_not_continued(api: HostedApi) -> None:
    saved(api, 20)
    paused = api.rest.cluster.objects["RLRun", "team", "paused"]
    newer = {**paused["metadata"], "resourceVersion": "900"}
    api.rest.add({**paused, "metadata": newer, "spec": {**paused["spec"], "batchSize": 0}})
    answer = await api.client.post("/training/runs/paused/resume", json={})
    assert (answer.status_code, writes(api)) == (409, []), answer.text
    assert "cannot be continued, because its spec is invalid: batchSize" in answer.json()["detail"]


async def test_a_repeated_resume_makes_no_second_run_while_the_first_one_trains(api: HostedApi) -> None:
    saved(api, 20)

    async def resume(**fields: Any) -> str:
        return str((await api.client.post("/training/runs/paused/resume", json=fields)).json()["runId"])

    first = await resume(wandbApiKey="hidden")
    assert [await resume(wandbApiKey="hidden"), await resume()] == [first, first]
    api.rest.cluster.objects["RLRun", "team", first]["status"] = {"phase": "Failed"}
    assert await resume(wandbApiKey="hidden") != first, "a run that has ended is replaced"
    assert api.rest.cluster.objects["Secret", "team", f"{first}-env"]


async def test_a_run_that_was_paused_before_its_first_step_begins_again(api: HostedApi) -> None:
    paused = api.rest.cluster.objects["RLRun", "team", "paused"]
    newer = {**paused["metadata"], "resourceVersion": "900"}
    api.rest.add({**paused, "metadata": newer, "status": {"phase": "Suspended"}})
    name = (await api.client.post("/training/runs/paused/resume", json={})).json()["runId"]
    spec = api.rest.cluster.objects["RLRun", "team", name]["spec"]
    assert (spec.get("checkpointId"), spec["maxSteps"]) == (None, 30)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/training/runs/paused/resume", {}), ("/training/runs", {"config": CONFIG, "resumeFrom": "paused"})],
)
async def test_steps_without_a_checkpoint_are_not_made_again_unasked(
    api: HostedApi, path: str, body: dict[str, Any]
) -> None:
    saved(api, 2, phase="Failed")
    answer = await api.client.post(path, json=body)
    assert (answer.status_code, "is at step 2" in answer.json()["detail"], writes(api)) == (409, True, [])


async def test_steps_of_all_runs_that_continue_each_other_count(api: HostedApi) -> None:
    saved(api, 10)
    second = (await api.client.post("/training/runs/paused/resume", json={})).json()["runId"]
    made = api.rest.cluster.objects["RLRun", "team", second]
    assert made["spec"]["maxSteps"] == 20
    newer = {**made["metadata"], "resourceVersion": "900"}
    spec = {**made["spec"], "suspend": True}
    api.rest.add({**made, "metadata": newer, "spec": spec, "status": {"phase": "Suspended"}})

    async def start(path: str, body: dict[str, Any]) -> tuple[str, int]:
        answer = await api.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        found = api.rest.cluster.objects["RLRun", "team", answer.json()["runId"]]["spec"]
        return found["checkpointId"], found["maxSteps"]

    file = ("/training/runs", {"config": CONFIG, "resumeFrom": second})
    assert await start(*file) == ("paused-step-10", 20), "it has trained no step of its own"
    own = artifact_object("RLCheckpoint", f"{second}-step-5", 5)
    own["spec"] |= {"runName": second, "runUid": made["metadata"]["uid"]}
    api.rest.add(own)
    assert await start(*file) == (f"{second}-step-5", 15)
    assert await start(f"/training/runs/{second}/resume", {}) == (f"{second}-step-5", 15)


async def test_a_run_of_a_clients_program_is_resumed_by_that_program(api: HostedApi) -> None:
    api.rest.add(run_object("tinker", number=31, phase="Suspended", driver="Client", env=[], model=MODEL, suspend=True))
    answer = await api.client.post("/training/runs/tinker/resume", json={})
    assert (answer.status_code, writes(api)) == (409, [])
    assert "whose next call resumes it" in answer.json()["detail"]


async def test_a_run_without_environments_has_the_name_of_its_model(api: HostedApi) -> None:
    answer = await api.client.post("/training/runs", json={"config": {"model": MODEL, "driver": "Client"}})
    assert answer.status_code == 200, answer.text
    assert answer.json()["runId"].startswith(MODEL.lower().replace("/", "-")[:10])


async def test_only_a_paused_run_is_resumed(api: HostedApi) -> None:
    answer = await api.client.post("/training/runs/running/resume", json={})
    assert (answer.status_code, "Run running is RUNNING" in answer.json()["detail"]) == (409, True)
    answer = await api.client.post("/training/runs", json={"config": CONFIG, "resumeFrom": "running"})
    assert (answer.status_code, "PAUSED" in answer.json()["detail"]) == (409, True)
    pausing = run_object("pausing", number=3, phase="Suspended", suspend=True)
    pausing["status"]["reason"] = "Finishing"
    api.rest.add(pausing)
    assert (await api.client.get("/rft/runs/pausing")).json()["run"]["status"] == "PAUSING"
    assert (await api.client.post("/training/runs/pausing/pause")).json() == {"status": "PAUSING"}
    answer = await api.client.post("/training/runs/pausing/resume", json={})
    assert (answer.status_code, "PAUSING" in answer.json()["detail"]) == (409, True), "it may still save"
    saved(api, 20, phase="Uploading")
    answer = await api.client.post("/training/runs/paused/resume", json={})
    assert (answer.status_code, "is UPLOADING" in answer.text) == (422, True)
    assert not writes(api)


async def test_a_new_file_may_start_from_a_paused_run(api: HostedApi) -> None:
    saved(api, 20)
    name = (await api.client.post("/training/runs", json={"config": CONFIG, "resumeFrom": "paused"})).json()["runId"]
    spec = api.rest.cluster.objects["RLRun", "team", name]["spec"]
    assert (spec["checkpointId"], spec["maxSteps"]) == ("paused-step-20", 10)
    answer = await api.client.post(
        "/training/runs", json={"config": {**CONFIG, "max_steps": 20}, "resumeFrom": "paused"}
    )
    assert answer.json()["detail"][0]["loc"] == ["body", "config", "max_steps"]


@pytest.mark.parametrize("words", ["pause", "resume"])
async def test_runs_of_others_are_neither_paused_nor_resumed(api: HostedApi, words: str) -> None:
    answer = await api.client.post(f"/training/runs/foreign/{words}", json={})
    assert (answer.status_code, writes(api)) == (404, [])


@pytest.mark.parametrize(
    ("path", "body", "missing"),
    [
        ("", {"config": CONFIG}, "create"),
        ("", {"config": CONFIG, "resumeFrom": "paused"}, "get"),
        ("/running/pause", {}, "patch"),
        ("/paused/resume", {}, "create"),
        ("/paused/resume", {}, "get"),
    ],
)
async def test_each_right_is_needed(api: HostedApi, path: str, body: dict[str, Any], missing: str) -> None:
    others = [f"{verb} rlruns in scoped" for verb in ("list", "get", "create", "patch") if verb != missing]
    await api.key("scoped", *others)
    answer = await api.client.post(f"/training/runs{path}", json=body)
    assert (answer.status_code, f"may not {missing} rlruns" in answer.text) == (403, True), answer.text
    assert not writes(api)


async def test_models_and_gpus(api: HostedApi) -> None:
    models = (await api.client.get("/training/available-fft-models")).json()
    assert models == {"models": [{"name": MODEL, "clusters": []}], "onDemand": []}
    assert (await api.client.get("/training/available-gpu-types")).json() == {"gpuTypes": []}


@pytest.mark.parametrize("path", ["runs/prepare", "volumes"])
async def test_preparation_and_volumes_are_absent_on_purpose(api: HostedApi, path: str) -> None:
    """Clients go on after a 404 of the preparation, and end after any other error."""
    answer = await api.client.post(f"/training/{path}", json={})
    assert (answer.status_code, "Not supported" in answer.json()["detail"]) == (404, True)


async def test_gpus_of_a_run_are_those_of_its_attempt(api: HostedApi) -> None:
    run = run_object("large", number=40)
    run["status"]["resolved"] = {"gpus": 6}
    api.rest.add(run)
    assert (await api.client.get("/rft/runs/large")).json()["run"]["gpuCount"] == 6
