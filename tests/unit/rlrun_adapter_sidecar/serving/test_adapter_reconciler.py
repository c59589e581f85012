"""One replica's adapters follow the order, whatever engine and S3 do."""

import asyncio
import hashlib
import shutil
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.serving import DesiredAdapters, LoadState, ServedAdapter, ServingReport
from rlrun.storage.layout import ADAPTER_WEIGHTS
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import AccessDenied, Unreachable
from rlrun_adapter_sidecar.serving.server import serving_app

from tests.unit.rlrun_adapter_sidecar.serving.conftest import BASE, Setup


def order(*adapters: ServedAdapter) -> DesiredAdapters:
    return DesiredAdapters(base=BASE, adapters=list(adapters))


async def test_desired_adapters_are_loaded_by_name(setup: Setup) -> None:
    one, two = setup.artifacts.publish_adapter("one"), setup.artifacts.publish_adapter("two", b"other")
    keeper = setup.keeper(one, two)
    assert keeper.not_ready is not None
    await setup.look(keeper)
    assert keeper.not_ready is not None, "loaded is what the engine says, not what was asked for"
    await setup.look(keeper)
    assert keeper.not_ready is None
    assert setup.states(keeper) == {"one": "loaded", "two": "loaded"}
    assert set(setup.engine.loaded) == {f"{BASE}:one", f"{BASE}:two"}
    assert (setup.artifacts.downloads, setup.engine.loads) == (2, 2)


async def test_equal_weights_of_two_runs_are_two_adapters(setup: Setup) -> None:
    one, two = setup.artifacts.publish_adapter("one"), setup.artifacts.publish_adapter("two")
    keeper = setup.keeper(one, two)
    await setup.settle(keeper)
    keeper.set_desired(order(two))
    setup.clock.now += 1000
    await setup.settle(keeper)
    setup.clock.now += 1000
    await setup.settle(keeper)
    (path,) = setup.engine.loaded.values()
    assert (setup.folder / path / "adapter_model.safetensors").is_file()


async def test_new_order_unloads_other_adapters_and_keeps_the_replica_ready(setup: Setup) -> None:
    one, two = setup.artifacts.publish_adapter("one"), setup.artifacts.publish_adapter("two", b"other")
    keeper = setup.keeper(one)
    await setup.settle(keeper)
    keeper.set_desired(order(two))
    assert keeper.not_ready is None, "what comes later holds up nobody"
    assert setup.states(keeper) == {"two": "loading", "one": "unloading"}
    await setup.settle(keeper)
    assert set(setup.engine.loaded) == {f"{BASE}:two"}
    assert setup.states(keeper) == {"two": "loaded"}


async def test_failed_unload_is_reported_and_retried(setup: Setup) -> None:
    keeper = setup.keeper(setup.artifacts.publish_adapter("one"))
    await setup.settle(keeper)
    setup.engine.keeps = True
    keeper.set_desired(order())
    await setup.settle(keeper)
    (report,) = keeper.report().adapters
    assert report.state is LoadState.unloading
    assert report.problem is not None
    assert report.problem.reason == "AdapterUnloadRejected"
    setup.engine.keeps = False
    await setup.look(keeper)
    assert setup.engine.loaded, "not before its pause is over"
    setup.clock.now += 10
    await setup.look(keeper)
    assert (setup.engine.loaded, keeper.report().adapters) == ({}, [])


async def test_an_engine_that_restarts_gets_its_adapters_before_it_gets_requests(setup: Setup) -> None:
    keeper = setup.keeper(setup.artifacts.publish_adapter("one"))
    await setup.settle(keeper)
    setup.engine.loaded.clear()
    await keeper.reconcile_once()
    assert keeper.not_ready is not None
    assert keeper.not_ready.reason == "AdaptersLoading"
    await setup.settle(keeper)
    assert (keeper.not_ready, list(setup.engine.loaded)) == (None, [f"{BASE}:one"])
    assert setup.artifacts.downloads == 1


async def test_a_sidecar_that_restarts_finds_files_and_adapters_in_place(setup: Setup) -> None:
    one = setup.artifacts.publish_adapter("one")
    await setup.settle(setup.keeper(one))
    again = setup.keeper(one)
    await again.reconcile_once()
    assert again.not_ready is None
    assert (setup.artifacts.downloads, setup.engine.loads) == (1, 1)


async def test_adapter_that_cannot_be_loaded_is_retried_with_growing_pauses(setup: Setup) -> None:
    one, lost = (
        setup.artifacts.publish_adapter("one"),
        ServedAdapter(name=f"{BASE}:lost", uri="s3://bucket/lost", step=1),
    )
    keeper = setup.keeper(one, lost)
    await setup.settle(keeper)
    assert keeper.not_ready is None
    assert setup.states(keeper) == {"one": "loaded", "lost": "failed"}
    (problem,) = [a.problem for a in keeper.report().adapters if a.problem]
    assert "s3://bucket/lost has no complete adapter" in problem.message
    setup.artifacts.publish_adapter("lost")
    await setup.settle(keeper)
    assert setup.states(keeper)["lost"] == "failed"
    setup.clock.now += 5
    await setup.settle(keeper)
    assert setup.states(keeper)["lost"] == "loaded"


@pytest.mark.parametrize("file", [ADAPTER_WEIGHTS, "adapter_config.json"])
async def test_files_that_were_swapped_after_the_adapter_was_ready_reach_no_engine(setup: Setup, file: str) -> None:
    files = {ADAPTER_WEIGHTS: b"weights", "adapter_config.json": b"{}"}
    setup.artifacts.publish("s3://bucket/one", files, ArtifactKind.adapter)
    digest = hashlib.sha256(setup.artifacts.objects["s3://bucket/one/manifest.json"]).hexdigest()
    setup.artifacts.publish("s3://bucket/one", files | {file: b"swapped"}, ArtifactKind.adapter)
    keeper = setup.keeper(ServedAdapter(name=f"{BASE}:one", uri="s3://bucket/one", step=7, digest=digest))
    await setup.settle(keeper)
    (report,) = keeper.report().adapters
    assert (report.state, setup.engine.loads) == ("failed", 0)
    assert report.problem is not None
    assert report.problem.reason == "ArtifactChanged"
    assert "s3://bucket/one" in report.problem.message
    assert digest in report.problem.message


async def test_files_are_those_of_the_manifest_that_was_compared(setup: Setup) -> None:
    """Also if another one, whose weights are the same, takes its place before they are downloaded."""
    files = {ADAPTER_WEIGHTS: b"weights", "adapter_config.json": b"good"}
    setup.artifacts.publish("s3://bucket/one", files, ArtifactKind.adapter)
    digest = hashlib.sha256(setup.artifacts.objects["s3://bucket/one/manifest.json"]).hexdigest()
    usual = setup.artifacts.download

    def swap(*arguments: Any, **named: Any) -> Any:
        setup.artifacts.publish("s3://bucket/one", files | {"adapter_config.json": b"evil"}, ArtifactKind.adapter)
        return usual(*arguments, **named)

    setup.artifacts.download = swap  # type: ignore[method-assign]
    keeper = setup.keeper(ServedAdapter(name=f"{BASE}:one", uri="s3://bucket/one", step=7, digest=digest))
    await setup.settle(keeper)
    assert (setup.states(keeper), setup.engine.loads) == ({"one": "failed"}, 0)


async def test_a_changed_order_retries_failed_adapters_at_once(setup: Setup) -> None:
    one = setup.artifacts.publish_adapter("one")
    keeper = setup.keeper(one)
    setup.artifacts.fail = AccessDenied("key refused")
    await setup.settle(keeper)
    (report,) = keeper.report().adapters
    assert report.problem is not None
    assert report.problem.message == "S3AccessDenied: key refused"
    setup.artifacts.fail = None
    keeper.set_desired(order(one, setup.artifacts.publish_adapter("two", b"other")))
    await setup.settle(keeper)
    assert setup.states(keeper) == {"one": "loaded", "two": "loaded"}


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        ({"rank": 32}, "AdapterRankTooHigh", "but the pool's engines accept at most 16; increase lora.rank"),
        ({"file": "model.safetensors"}, "NotAnAdapter", "`lora.enabled: false`"),
        ({"kind": ArtifactKind.checkpoint}, "NotAnAdapter", "is not a LoRA adapter"),
    ],
)
async def test_adapter_the_engine_cannot_load_is_not_downloaded(
    setup: Setup, more: dict[str, object], reason: str, words: str
) -> None:
    keeper = setup.keeper(setup.artifacts.publish_adapter("one", **more))  # type: ignore[arg-type]
    await setup.settle(keeper)
    (report,) = keeper.report().adapters
    assert report.state is LoadState.failed
    assert report.problem is not None
    assert report.problem.reason == reason
    assert words in report.problem.message
    assert (setup.artifacts.downloads, setup.engine.loads) == (0, 0)


async def test_engine_error_is_passed_on(setup: Setup) -> None:
    setup.engine.refuse = (400, "Call to add_lora failed")
    keeper = setup.keeper(setup.artifacts.publish_adapter("one", rank=16))
    await setup.settle(keeper)
    (report,) = keeper.report().adapters
    assert report.problem is not None
    assert "Call to add_lora failed" in report.problem.message


async def test_unreachable_engine_leaves_adapter_states_unchanged(setup: Setup) -> None:
    keeper = setup.keeper(setup.artifacts.publish_adapter("one"))
    await setup.settle(keeper)
    setup.engine.list_status = 500
    await setup.look(keeper)
    assert keeper.not_ready is not None
    assert keeper.not_ready.reason == "EngineUnreachable"
    assert setup.states(keeper) == {"one": "loaded"}
    await setup.stop_engine()
    await setup.look(keeper)
    assert setup.states(keeper) == {"one": "loaded"}


async def test_files_leave_the_disk_a_while_after_their_adapter(setup: Setup) -> None:
    keeper = setup.keeper(setup.artifacts.publish_adapter("one"))
    await setup.settle(keeper)
    keeper.set_desired(order())
    await setup.settle(keeper)
    assert len(list(setup.folder.iterdir())) == 1
    setup.clock.now += setup.settings.unload_grace
    await setup.look(keeper)
    assert list(setup.folder.iterdir()) == []


async def test_an_adapter_that_comes_back_in_time_needs_no_download(setup: Setup) -> None:
    one = setup.artifacts.publish_adapter("one")
    keeper = setup.keeper(one)
    await setup.settle(keeper)
    keeper.set_desired(order())
    await setup.settle(keeper)
    keeper.set_desired(order(one))
    await setup.settle(keeper)
    setup.clock.now += setup.settings.unload_grace
    await setup.look(keeper)
    assert (setup.states(keeper), setup.artifacts.downloads) == ({"one": "loaded"}, 1)


async def test_s3_outage_at_the_start_is_waited_for(setup: Setup) -> None:
    setup.artifacts.fail = Unreachable("silent")
    keeper = setup.keeper(setup.artifacts.publish_adapter("one"))
    for _ in range(12):
        await setup.look(keeper)
        setup.clock.now += 300
    setup.artifacts.fail = None
    await setup.settle(keeper)
    assert setup.states(keeper) == {"one": "loaded"}


async def test_routes_accept_orders_and_report_states(setup: Setup) -> None:
    keeper = setup.keeper()
    server = TestServer(serving_app(keeper))
    await server.start_server()
    keeping = asyncio.create_task(keeper.keep())
    wanted = order(setup.artifacts.publish_adapter("one"))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:

        async def report() -> ServingReport:
            async with http.get("/adapters") as response:
                return ServingReport.model_validate_json(await response.read())

        async with http.put("/adapters", json=wanted.to_json_dict()) as response:
            told = ServingReport.model_validate_json(await response.read())
        assert (told.order, told.adapters[0].state) == (wanted, LoadState.loading)
        async with asyncio.timeout(10):
            while True:
                if (await report()).adapters[0].state is LoadState.loaded:
                    break
                await asyncio.sleep(0.01)
        async with http.get("/readyz") as response:
            assert response.status == 200
        async with http.put("/adapters", json={"base": BASE, "adapters": [{"name": "x"}]}) as response:
            assert (response.status, (await response.json())["reason"]) == (422, "InvalidRequest")
        async with http.get("/metrics") as response:
            assert 'rlrun_sidecar_loads_total{outcome="ok"} 1.0' in await response.text()
        setup.engine.loaded.clear()
        shutil.rmtree(setup.folder)
        await setup.stop_engine()
        async with asyncio.timeout(10):
            while True:
                async with http.get("/readyz") as response:
                    if response.status == 503:
                        break
                await asyncio.sleep(0.01)
    keeping.cancel()
    await server.close()
