"""Fields that a run's spec leaves open: their values reach the attempt's configuration and the status."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.protocol.resolved import ResolvedRun

from tests.support.cluster_objects import hub_secret, model_object, run_object, source_secret
from tests.support.expectations import present
from tests.support.fake_artifacts import manifest
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS, World

MakeWorld = Callable[..., World]


def world_of(model: dict[str, Any] | None = None, **spec: Any) -> World:
    """A world with one run, which has no sampling section unless `spec` has one."""
    run = run_object(**spec)
    if "sampling" not in spec:
        del run["spec"]["sampling"]
    return World(FakeCluster(run, model_object(**(model or {})), source_secret()))


def configuration(world: World) -> ResolvedRun:
    (config,) = world.cluster.all("ConfigMap")
    return ResolvedRun.parse(config["data"]["run.json"])


@pytest.mark.proves("sampling.maxTokens")
@pytest.mark.parametrize(
    ("model", "spec", "tokens"),
    [
        ({}, {}, 128),
        ({}, {"sampling": {"temperature": 0.5}}, 128),
        ({"defaultMaxTokens": 100}, {}, 100),
        ({"defaultMaxTokens": 100}, {"sampling": {"maxTokens": 20}}, 20),
    ],
    ids=["half of seqLen", "other sampling settings", "default of the model", "value of the run"],
)
async def test_a_run_without_max_tokens_has_those_of_its_model(
    model: dict[str, Any], spec: dict[str, Any], tokens: int
) -> None:
    world = world_of(model, **spec)
    await world.start()
    assert configuration(world).spec.sampling.max_tokens == tokens
    assert world.status["resolved"]["maxTokens"] == tokens


@pytest.mark.proves("checkpointId")
async def test_a_run_starts_from_the_checkpoint_with_the_id_that_another_run_shows(make_world: MakeWorld) -> None:
    """The id in the status of the first run is all that the second one needs, in its own and in other namespaces."""
    first = make_world()
    await first.start()
    uri = "s3://rlrun/team/uid-1/checkpoints/step-000005"
    first.artifacts.folders[uri] = manifest(5)
    await first.reconcile()
    (listed,) = first.status["checkpoints"]
    assert listed["id"] == "cp_team.reverse-step-000005-uid-1"
    first.cluster.put(run_object("second", uid="uid-2", checkpointId=listed["id"]))
    await first.reconcile(2, name="second")
    (config,) = [c for c in first.cluster.all("ConfigMap") if c["metadata"]["name"] == "second-config"]
    assert ResolvedRun.parse(config["data"]["run.json"]).warm_start_from == uri
    status = first.cluster.find("RLRun", "second")["status"]
    assert status["resolved"]["checkpointId"] == listed["id"]


WANDB = {"wandb": {}, "envFrom": [{"secretRef": {"name": "hub"}}]}


async def test_a_run_waits_for_its_key_of_weights_and_biases(make_world: MakeWorld) -> None:
    world = make_world(**WANDB)
    await world.put(hub_secret(key="OTHER"), 2)
    assert world.status["reason"] == "WandbKeyMissing"
    message = world.condition("Validated")["message"]
    assert "no Secret in `spec.envFrom` (hub) has an entry WANDB_API_KEY" in message
    assert world.cluster.all("Deployment", "Job") == []
    await world.put(hub_secret("", key="WANDB_API_KEY"))
    assert world.status["reason"] == "WandbKeyMissing", "an empty entry is no key"
    world.cluster.put(hub_secret("secret-value", key="WANDB_API_KEY"))
    await world.start()
    assert world.condition("Validated")["status"] == "True"
    assert "secret-value" not in str([world.run, *world.cluster.all("ConfigMap", "Job", "Deployment")])


@pytest.mark.proves("wandb.project")
@pytest.mark.parametrize(("wandb", "project"), [({}, "team"), ({"project": "words"}, "words")])
async def test_the_project_is_the_namespace_unless_the_run_names_one(
    make_world: MakeWorld, wandb: dict[str, str], project: str
) -> None:
    world = make_world(wandb={**wandb, "offline": True})
    await world.start()
    assert world.status["resolved"]["wandbProject"] == project
    assert present(configuration(world).spec.wandb).project == project


async def test_an_attempt_keeps_the_defaults_of_its_start() -> None:
    world = world_of({"defaultMaxTokens": 100})
    await world.start()
    world.cluster.put(model_object(defaultMaxTokens=50))
    world.settings = SETTINGS.model_copy(
        update={"defaults": SETTINGS.defaults.model_copy(update={"checkpoint_interval": 7})}
    )
    await world.reconcile(2)
    interval = SETTINGS.defaults.checkpoint_interval
    assert world.status["resolved"] == {
        "modelSource": "s3://rlrun/models/tiny",
        "maxTokens": 100,
        "checkpointInterval": interval,
        "gpus": 0,
    }
    found = configuration(world).spec
    assert (found.sampling.max_tokens, found.checkpoints.interval) == (100, interval)


async def test_instances_of_a_partitioned_gpu_count_in_the_usage() -> None:
    mig = {"gpus": 0, "resources": {"limits": {"nvidia.com/mig-1g.10gb": "2", "memory": "8Gi"}}}
    world = world_of({"trainer": {"gpus": 1}, "inference": {**mig, "replicas": 3}})
    await world.start()
    assert world.status["resolved"]["gpus"] == 1 + 3 * 2


async def test_all_pods_of_an_attempt_fetch_the_commit_that_its_status_names() -> None:
    first, second = (f"hf://Qwen/Qwen3-4B@{digit * 40}" for digit in "12")
    world = world_of({"source": first})
    await world.start()
    world.cluster.put(model_object(source=second))
    for workload in world.cluster.all("ReplicaSet"):
        world.cluster.request_deletion(workload)
    await world.reconcile(2)
    assert world.status["resolved"]["modelSource"] == first
    fetchers = [
        container["args"][0]
        for workload in world.cluster.all("ReplicaSet")
        for container in workload["spec"]["template"]["spec"].get("initContainers", ())
        if container["name"] == "fetch-model"
    ]
    assert fetchers == [first, first]
