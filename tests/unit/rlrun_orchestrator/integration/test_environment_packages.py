"""Packages of a run's environments over several processes: each has what the first one recorded, or the run ends."""

import asyncio
import hashlib
from typing import Any

import aiohttp
import pytest
from rlrun.constants import Reason
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import AccessDenied, Unreachable

from tests.support.fake_environment import FakeEnvironment
from tests.support.run_processes import World

FOLDER = S3Uri.parse("s3://bucket/environments/owner/words")


def push(world: World, version: str, data: bytes = b"wheel") -> str:
    """Push a version of the package, which the environment gets if it is the first, and return its digest."""
    environment = world.environments["words"]
    environment.version = environment.version or version
    name = f"words-{version}-py3-none-any.whl"
    world.store.objects[str(FOLDER / version / name)] = data
    line = f"{hashlib.sha256(data).hexdigest()}  {name}\n"
    return f"sha256:{hashlib.sha256(line.encode()).hexdigest()}"


async def begin(world: World) -> tuple["asyncio.Task[int]", RunStatus]:
    """Run as far as the environment being waited for."""
    environment = world.environments["words"]
    environment.problem = Problem(reason="EnvironmentStarting", message="it fetches its package")
    world.settings["configuration_grace"] = 60.0
    looks = environment.looks
    running = asyncio.create_task(world.run())
    await world.until(lambda: environment.looks > looks)
    return running, await world.until_waiting("EnvironmentStarting")


async def fetch(world: World) -> tuple[int, str | None, Any]:
    """Ask for the package as the environment's pod does."""
    url = f"http://127.0.0.1:{world.gateway_port}/environments/owner/words"
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        problem = await response.json() if response.status != 200 else None
        return response.status, response.headers.get("X-Environment-Version"), problem


async def test_a_run_reports_what_its_environments_have(world: World) -> None:
    digest = push(world, "1.0")
    await world.start()
    running, before = await begin(world)
    assert (await fetch(world))[:2] == (200, "1.0")
    assert before.environments == []
    world.environments["words"].problem = None
    assert await running == 0
    (package,) = world.last_word.environments
    assert (package.id, package.requested_version, package.version, package.digest) == (
        "owner/words",
        None,
        "1.0",
        digest,
    )


async def test_a_later_process_delivers_the_recorded_version_although_there_is_a_newer_one(world: World) -> None:
    push(world, "1.0")
    await world.start()
    assert await world.run() == 0
    world.packages = world.last_word.environments
    push(world, "2.0")
    running, _ = await begin(world)
    assert (await fetch(world))[:2] == (200, "1.0")
    world.environments["words"].problem = None
    assert await running == 0
    assert world.last_word.environments == world.packages


async def test_a_run_whose_package_has_changed_ends_instead_of_training(world: World) -> None:
    push(world, "1.0")
    await world.start()
    assert await world.run() == 0
    world.packages = world.last_word.environments
    trained = len(world.trainer.batches)
    digest = push(world, "1.0", b"other")
    running, _ = await begin(world)
    status, _, problem = await fetch(world)
    assert (status, problem["reason"]) == (409, "EnvironmentChanged")
    assert await running == 64
    end = world.last_word
    assert end.problem is not None
    assert (end.phase, end.problem.reason) == (RunPhase.failed, Reason.ENVIRONMENT_CHANGED)
    for text in ("owner/words 1.0", digest, world.packages[0].digest, "start a new run"):
        assert text in end.problem.message
    assert end.environments == world.packages
    assert len(world.trainer.batches) == trained


@pytest.mark.proves("env.digest")
async def test_a_run_whose_package_has_another_digest_than_its_entry_ends(world: World) -> None:
    digest, wanted = push(world, "1.0"), f"sha256:{'0' * 64}"
    world.spec["env"] = [{"id": "owner/words", "digest": wanted}]
    await world.start()
    running, _ = await begin(world)
    status, _, problem = await fetch(world)
    assert (status, problem["reason"]) == (409, "EnvironmentDigestMismatch")
    assert await running == 64
    end = world.last_word
    assert end.problem is not None
    assert (end.phase, end.problem.reason) == (RunPhase.failed, Reason.ENVIRONMENT_DIGEST_MISMATCH)
    assert digest in end.problem.message
    assert wanted in end.problem.message
    assert world.trainer.batches == []


async def test_a_run_whose_package_has_the_digest_of_its_entry_trains(world: World) -> None:
    world.spec["env"] = [{"id": "owner/words", "digest": push(world, "1.0")}]
    await world.start()
    assert await world.run() == 0


async def test_a_package_that_an_earlier_process_delivered_is_recorded_in_the_version_of_its_environment(
    world: World,
) -> None:
    digest = push(world, "1.0")
    push(world, "2.0")
    await world.start()
    assert await world.run() == 0
    (package,) = world.last_word.environments
    assert (package.requested_version, package.version, package.digest) == (None, "1.0", digest)


async def test_environments_with_different_versions_of_one_package_do_not_start(world: World) -> None:
    push(world, "1.0")
    push(world, "2.0")
    world.spec["env"] = [{"id": "owner/words"}, {"id": "owner/words", "name": "more"}]
    world.environments = {"words": FakeEnvironment("words"), "more": FakeEnvironment("more")}
    world.environments["words"].version, world.environments["more"].version = "1.0", "2.0"
    await world.start()
    assert await world.run() == 64
    assert world.last_word.problem is not None
    assert world.last_word.problem.reason == "EnvironmentChanged"
    assert "1.0, 2.0" in world.last_word.problem.message


@pytest.mark.parametrize("version", [None, "0.9"])
async def test_nothing_is_recorded_that_the_environment_may_not_have(world: World, version: str | None) -> None:
    push(world, "1.0")
    world.environments["words"].version = version
    await world.start()
    assert await world.run() == 0
    assert world.last_word.environments == []


async def test_the_record_waits_for_s3(world: World) -> None:
    push(world, "1.0")
    read, failures = world.store.get_bytes, [Unreachable("no answer"), AccessDenied("no")]

    def flaky(uri: S3Uri, *limit: int) -> bytes:
        if failures and uri.key.endswith(".whl"):
            raise failures.pop()
        return read(uri, *limit)

    world.store.get_bytes = flaky  # type: ignore[method-assign]
    await world.start()
    assert await world.run() == 0
    assert not failures
    assert len(world.last_word.environments) == 1


@pytest.mark.slow
async def test_the_record_ends_the_attempt_when_s3_stays_away(world: World) -> None:
    push(world, "1.0")
    read = world.store.get_bytes

    def away(uri: S3Uri, *_: int) -> bytes:
        if uri.key.endswith(".whl"):
            raise Unreachable("no answer")
        return read(uri)

    world.store.get_bytes = away  # type: ignore[method-assign]
    world.settings["start_deadline"] = 0.5
    await world.start()
    assert await world.run() == 1
    assert world.last_word.problem is not None
    assert world.last_word.problem.reason == "S3Unreachable"


@pytest.mark.parametrize("is_fetched", [True, False])
async def test_pods_of_an_environment_with_different_versions_do_not_start(world: World, is_fetched: bool) -> None:
    push(world, "1.0")
    second = FakeEnvironment("words", problem=Problem(reason="EnvironmentStarting", message="it fetches its package"))
    world.pods["words"] = [second]
    world.spec["env"] = [{"id": "owner/words", "replicas": 2}]
    await world.start()
    running, _ = await begin(world)
    if is_fetched:
        assert (await fetch(world))[1] == "1.0"
    push(world, "2.0")
    if is_fetched:
        assert (await fetch(world))[1] == "2.0"
    else:
        # An earlier process delivered the package.
        second.version = "2.0"
    world.environments["words"].problem = second.problem = None
    assert await running == 64
    assert world.last_word.problem is not None
    assert world.last_word.problem.reason == "EnvironmentChanged"
