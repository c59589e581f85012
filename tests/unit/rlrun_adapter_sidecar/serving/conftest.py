"""A keeper between an engine that behaves like vLLM's and artifacts in memory, looked at one round at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.serving import DesiredAdapters, ServedAdapter
from rlrun.storage.layout import ADAPTER_WEIGHTS
from rlrun.storage.manifest import ArtifactKind
from rlrun_adapter_sidecar.engine.vllm_client import Engine
from rlrun_adapter_sidecar.serving.adapter_reconciler import AdapterReconciler
from rlrun_adapter_sidecar.serving.settings import ServingSettings

from tests.support.fake_engine import FakeEngine
from tests.support.fake_s3 import InMemoryStore

BASE = "a/b"


class AdapterStore(InMemoryStore):
    """Adapters of runs in S3."""

    def publish_adapter(
        self,
        name: str,
        weights: bytes = b"weights",
        kind: ArtifactKind = ArtifactKind.adapter,
        file: str = ADAPTER_WEIGHTS,
        **details: Any,
    ) -> ServedAdapter:
        uri = f"s3://bucket/{name}"
        self.publish(uri, {file: weights}, kind, **details)
        return ServedAdapter(name=f"{BASE}:{name}", uri=uri, step=7)


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Setup:
    """One replica, and what stands around it."""

    engine: FakeEngine
    artifacts: AdapterStore
    folder: Path
    clock: Clock
    client: Engine
    settings: ServingSettings
    stop_engine: Callable[[], Any]
    keepers: list[AdapterReconciler] = field(default_factory=list)

    def keeper(self, *adapters: ServedAdapter) -> AdapterReconciler:
        """A sidecar that starts with that order."""
        order = DesiredAdapters(base=BASE, adapters=list(adapters))
        self.keepers.append(AdapterReconciler(self.client, self.artifacts, self.settings, order, self.clock))
        return self.keepers[-1]

    async def look(self, keeper: AdapterReconciler) -> None:
        """One look, and the end of all loads that it began."""
        await keeper.reconcile_once()
        names = {f"load {a.name}" for a in keeper.report().adapters}
        loads = [t for t in asyncio.all_tasks() if t.get_name() in names]
        if loads:
            await asyncio.wait(loads, timeout=10)

    async def settle(self, keeper: AdapterReconciler) -> None:
        """Looks until what was loaded has been seen."""
        await self.look(keeper)
        await self.look(keeper)

    def states(self, keeper: AdapterReconciler) -> dict[str, str]:
        return {a.name.removeprefix(f"{BASE}:"): a.state.value for a in keeper.report().adapters}


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    engine = FakeEngine(BASE)
    server = TestServer(engine.app())
    await server.start_server()
    folder = tmp_path / "adapters"
    folder.mkdir()
    async with aiohttp.ClientSession() as http:
        client = Engine(http, f"http://127.0.0.1:{server.port}", load_deadline=5)
        settings = ServingSettings(adapters_dir=folder, max_lora_rank=16, check_pause=0.05)
        found = Setup(engine, AdapterStore(), folder, Clock(), client, settings, server.close)
        yield found
        for keeper in found.keepers:
            await keeper.close()
    await server.close()
