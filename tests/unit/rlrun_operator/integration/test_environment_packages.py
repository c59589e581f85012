"""Packages of a run's environments: recorded once in its status, and given to each later orchestrator."""

from collections.abc import Callable

import pytest
from rlrun.api.run_status import EnvironmentPackage
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.resolved import ResolvedRun

from tests.support.expectations import lacks
from tests.support.fake_kubelet import end_orchestrator
from tests.support.operator_world import World

ID = "rlrun/reverse-text"


def package(version: str = "1.0", digit: str = "a", requested: str | None = None, of: str = ID) -> EnvironmentPackage:
    return EnvironmentPackage(id=of, requested_version=requested, version=version, digest=f"sha256:{digit * 64}")


def report(*packages: EnvironmentPackage, phase: RunPhase = RunPhase.running) -> RunStatus:
    return RunStatus(phase=phase, max_steps=10, environments=list(packages))


async def train(world: World) -> None:
    """As far as the orchestrator reporting a package."""
    await world.start()
    await world.hear(report(package()))


def configured(world: World) -> list[EnvironmentPackage]:
    """The packages in the configuration of the orchestrator."""
    return ResolvedRun.parse(world.cluster.held("ConfigMap", "reverse-config")["data"]["run.json"]).environment_packages


async def test_the_packages_are_recorded_and_the_next_attempt_gets_them(world: World) -> None:
    await world.start()
    assert "environments" not in world.status
    assert configured(world) == []
    await world.hear(report())
    assert configured(world) == []
    await world.hear(report(package()))
    assert world.status["environments"] == [{"id": ID, "version": "1.0", "digest": f"sha256:{'a' * 64}"}]
    assert configured(world) == [package()], "an orchestrator that is replaced within the attempt gets it, too"
    assert await world.written(2) == 0
    world.poller.answer = None
    await world.change(2, suspend=True)
    assert world.cluster.find("ConfigMap", "reverse-config") is None
    world.change_spec(suspend=False)
    while world.cluster.find("ConfigMap", "reverse-config") is None:
        await world.reconcile()
    assert world.status["attempt"] == 2
    assert configured(world) == [package()]


async def test_a_package_is_recorded_for_a_run_that_spells_it_otherwise(world: World) -> None:
    world.change_spec(env=[{"id": "rlrun/Reverse_Text"}])
    await train(world)
    assert [each["id"] for each in world.status["environments"]] == [ID]


async def test_an_orchestrator_that_has_recorded_nothing_yet_changes_no_record(world: World) -> None:
    await train(world)
    await world.hear(report(phase=RunPhase.starting))
    assert configured(world) == [package()]
    assert len(world.status["environments"]) == 1


async def test_a_record_in_the_configuration_that_users_change_does_not_last(world: World) -> None:
    await train(world)
    content = world.config
    content["environmentPackages"][0]["version"] = "2.0"
    world.write_config(content)
    await world.reconcile()
    assert configured(world) == [package()]


@pytest.mark.parametrize("other", [package("1.1"), package(digit="b")])
async def test_an_orchestrator_with_another_package_ends_the_run(world: World, other: EnvironmentPackage) -> None:
    await train(world)
    await world.hear(report(other))
    assert (world.status["phase"], world.condition("Failed")["reason"]) == ("Failed", "EnvironmentChanged")
    message = world.condition("Failed")["message"]
    assert not lacks(message, ID, other.version, other.digest, package().digest, "Start a new run")
    assert world.status["environments"] == [package().to_json_dict()]


async def test_packages_of_training_and_evaluation_are_recorded_as_the_spec_names_them(
    make_world: Callable[..., World],
) -> None:
    world = make_world(
        env=[{"id": ID}, {"id": ID, "name": "old", "version": "0.9"}],
        eval={"env": [{"id": "team/other"}, {"id": ID}], "interval": 5},
    )
    await world.start()
    found = [package("0.9", "c", "0.9"), package(of="team/other", digit="d"), package(), package(of="not/ours")]
    await world.hear(report(*found))
    assert configured(world) == [package(), package("0.9", "c", "0.9"), package(of="team/other", digit="d")]


async def test_a_run_that_ends_before_it_is_asked_has_a_record_by_its_last_message(world: World) -> None:
    await world.start()
    last = report(package(), phase=RunPhase.completed)
    end_orchestrator(world.cluster, 0, last.model_dump_json(by_alias=True, exclude_none=True))
    assert await world.phase() == "Completed"
    assert world.status["environments"] == [package().to_json_dict()]


async def test_the_last_message_of_a_run_replaces_no_record(world: World) -> None:
    await train(world)
    last = report(package("1.1"), phase=RunPhase.completed)
    end_orchestrator(world.cluster, 0, last.model_dump_json(by_alias=True, exclude_none=True))
    await world.reconcile()
    assert world.status["environments"] == [package().to_json_dict()]


async def test_an_attempt_of_an_operator_without_records_keeps_its_configuration(world: World) -> None:
    """Its orchestrator would not know the key."""
    await world.start()
    content = world.config
    del content["environmentPackages"]
    world.write_config(content)
    before = world.cluster.held("ConfigMap", "reverse-config")["data"]
    await world.hear(report(package()))
    assert world.cluster.held("ConfigMap", "reverse-config")["data"] == before
