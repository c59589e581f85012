"""Whole weights: put in place of the ones before, named by the engine, repaired after its restart."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import MODEL_WEIGHTS
from rlrun.storage.manifest import ArtifactKind, weights_digest
from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.vllm_client import UNNAMED, Engine
from rlrun_adapter_sidecar.policies.settings import settings_from
from rlrun_adapter_sidecar.policies.weights import FullWeightsLoader

from tests.support.fake_engine import FakeEngine
from tests.unit.rlrun_adapter_sidecar.conftest import PolicyStore


class WeightsStore(PolicyStore):
    """A run's policies of whole weights in S3."""

    def publish_weights(self, version: int, weights: bytes, kind: PolicyKind = PolicyKind.weights) -> PolicyRef:
        return self.publish_policy(version, weights, kind, MODEL_WEIGHTS)


@dataclass
class Setup:
    engine: FakeEngine
    store: WeightsStore
    folder: Path
    weights: FullWeightsLoader

    @property
    def on_disk(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    engine, store = FakeEngine(), WeightsStore()
    server = TestServer(engine.app())
    await server.start_server()
    async with aiohttp.ClientSession() as http:
        client = Engine(http, f"http://127.0.0.1:{server.port}", load_deadline=5)
        weights = FullWeightsLoader(client, PolicyFiles(store, tmp_path, 5, SidecarMetrics()))
        yield Setup(engine, store, tmp_path, weights)
        await weights.close()
    await server.close()


async def test_new_weights_replace_the_old_ones_while_requests_wait(setup: Setup) -> None:
    policy = setup.store.publish_weights(1, b"one")
    assert (await setup.weights.list()).adapters == []
    answer = await setup.weights.load(policy)
    assert answer.adapters == [policy.name]
    assert answer.load_seconds
    assert answer.load_seconds > 0.02
    assert setup.engine.calls == [
        "/update_weight_version", "/pause", "/collective_rpc", "/reset_prefix_cache", "/resume",
        "/update_weight_version",
    ]  # fmt: skip
    assert (setup.engine.weights, setup.engine.version, setup.engine.paused) == (b"one", policy.name, False)


async def test_divided_weights_are_loaded_if_all_files_are_those_of_the_digest(setup: Setup) -> None:
    parts = {f"model-0000{number}-of-00002.safetensors": b"part %d," % number for number in (1, 2)}
    uri = "s3://bucket/run/policy/v000001-divided"
    index = {"model.safetensors.index.json": b"{}"}
    manifest = setup.store.publish(uri, index | parts, ArtifactKind.policy)
    digest = weights_digest(manifest.files, PolicyKind.weights)
    assert digest is not None
    policy = PolicyRef(version=1, digest=digest, uri=uri, kind=PolicyKind.weights)
    assert (await setup.weights.load(policy)).adapters == [policy.name]
    assert setup.engine.weights == b"part 1,part 2,"
    assert (setup.folder / policy.name / "model.safetensors.index.json").is_file()
    setup.engine.restart()
    await setup.weights.load(policy)
    assert setup.store.downloads == 1
    for wrong in ({}, {"model-00002-of-00002.safetensors": b"changed"}):
        setup.store.publish(uri, {"model-00001-of-00002.safetensors": b"part 1,"} | wrong, ArtifactKind.policy)
        await setup.weights._files.keep_only(set())
        setup.engine.restart()
        with pytest.raises(ProblemError, match="do not match the digest"):
            await setup.weights.load(policy)


async def test_repeated_and_concurrent_requests_for_a_version_load_it_once(setup: Setup) -> None:
    policy = setup.store.publish_weights(1, b"one")
    await asyncio.gather(*(setup.weights.load(policy) for _ in range(4)))
    await setup.weights.load(policy)
    assert setup.store.downloads == 1
    assert setup.engine.calls.count("/collective_rpc") == 1


async def test_at_most_two_versions_are_on_disk(setup: Setup) -> None:
    policies = [setup.store.publish_weights(n, b"weights %d" % n) for n in range(4)]
    (setup.folder / ".policy-v000000-cut-off").mkdir()
    for policy in policies:
        await setup.weights.load(policy)
        assert len(setup.on_disk) <= 2
    assert setup.on_disk == {policies[2].name, policies[3].name}


async def test_after_an_engine_restart_the_weights_are_loaded_again_without_download(setup: Setup) -> None:
    policy = setup.store.publish_weights(1, b"one")
    await setup.weights.load(policy)
    setup.engine.restart()
    assert (await setup.weights.list()).adapters == []
    await setup.weights.load(policy)
    assert (setup.engine.weights, setup.store.downloads) == (b"one", 1)


@pytest.mark.parametrize("step", ["/collective_rpc", "/reset_prefix_cache", "/resume"])
async def test_a_failed_replacement_serves_nothing_until_the_next_one(setup: Setup, step: str) -> None:
    policy = setup.store.publish_weights(1, b"one")
    setup.engine.breaks_at = step
    with pytest.raises(ProblemError, match="size mismatch for lm_head") as raised:
        await setup.weights.load(policy)
    assert (raised.value.status, raised.value.problem.reason) == (502, "WeightsLoadRejected")
    assert (setup.engine.version, setup.engine.paused) == (UNNAMED, True), "nothing may be drawn from half a version"
    assert (await setup.weights.list()).adapters == []
    setup.engine.breaks_at = ""
    assert (await setup.weights.load(policy)).adapters == [policy.name]
    assert not setup.engine.paused


async def test_old_keys_and_values_are_never_kept(setup: Setup) -> None:
    setup.engine.busy = True
    with pytest.raises(ProblemError, match="reset_prefix_cache"):
        await setup.weights.load(setup.store.publish_weights(1, b"one"))
    assert (await setup.weights.list()).adapters == []


async def test_an_adapter_is_refused(setup: Setup) -> None:
    with pytest.raises(ProblemError, match="serves full weights"):
        await setup.weights.load(setup.store.publish_weights(1, b"one", PolicyKind.adapter))


async def test_an_engine_without_the_weight_routes_is_reported_with_the_variable_to_set(
    setup: Setup, tmp_path: Path
) -> None:
    server = TestServer(web.Application())
    await server.start_server()
    async with aiohttp.ClientSession() as http:
        weights = FullWeightsLoader(
            Engine(http, f"http://127.0.0.1:{server.port}", 5), PolicyFiles(setup.store, tmp_path, 5, SidecarMetrics())
        )
        with pytest.raises(ProblemError, match="VLLM_SERVER_DEV_MODE=1"):
            await weights.list()
    await server.close()


def test_the_kind_comes_from_its_variable() -> None:
    assert settings_from({}).policy_kind is PolicyKind.adapter
    assert settings_from({"RLRUN_POLICY_KIND": "weights"}).policy_kind is PolicyKind.weights
    with pytest.raises(ValueError, match="RLRUN_POLICY_KIND"):
        settings_from({"RLRUN_POLICY_KIND": "some"})
