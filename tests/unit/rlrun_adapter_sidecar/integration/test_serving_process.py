"""The sidecar as a process of its own, with a real S3, rlrun-server, and an engine that tests play."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.constants import ExitCode
from rlrun.protocol import signed_text
from rlrun.protocol.access import bearer
from rlrun.protocol.serving import DesiredAdapters, LoadState, ServedAdapter, ServingReport
from rlrun.protocol.storage_access import GRANT_VARIABLE, StorageGrant, StorageRole
from rlrun.storage.layout import RunLayout
from rlrun.storage.manifest import ArtifactKind

from tests.support.fake_engine import FakeEngine
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.signing_server import KEY, NAMESPACE, UID, signing_server
from tests.support.source_tree import PYTHONPATH
from tests.unit.rlrun_adapter_sidecar.serving.conftest import BASE

SECONDS = 30
TOKEN = "t" * 64


@dataclass
class Pod:
    """A pod's files, and its engine."""

    folder: Path
    engine: FakeEngine
    s3: S3Server
    port: int
    environment: dict[str, str]

    def mount(self, order: DesiredAdapters) -> None:
        (self.folder / "order.json").write_text(order.model_dump_json(by_alias=True))

    def grant(self, *readable: str) -> str:
        content = StorageGrant(namespace=NAMESPACE, owner=UID, role=StorageRole.serving, readable=list(readable))
        return signed_text.sign(content, KEY)

    async def start(self) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "rlrun_adapter_sidecar.serving")
        return await asyncio.create_subprocess_exec(*command, env=os.environ | self.environment)

    async def report(self) -> ServingReport | None:
        try:
            url = f"http://127.0.0.1:{self.port}/adapters"
            async with aiohttp.ClientSession(headers=bearer(TOKEN)) as http, http.get(url) as response:
                return ServingReport.model_validate_json(await response.read())
        except aiohttp.ClientError:
            return None

    async def wait_for(self, *states: LoadState) -> ServingReport:
        async with asyncio.timeout(SECONDS):
            while True:
                report = await self.report()
                if report is not None and tuple(a.state for a in report.adapters) == states:
                    return report
                await asyncio.sleep(0.05)


@pytest.fixture
async def pod(tmp_path: Path, s3_server: S3Server) -> AsyncIterator[Pod]:
    engine = FakeEngine(BASE, token=TOKEN)
    server = TestServer(engine.app())
    await server.start_server()
    for name in ("adapters", "tokens"):
        (tmp_path / name).mkdir()
    with claimed_ports(1) as (port,), signing_server(s3_server, tmp_path / "tokens") as storage:
        environment = {
            "PYTHONPATH": PYTHONPATH,
            "RLRUN_ENGINE_URL": f"http://127.0.0.1:{server.port}",
            "RLRUN_ADAPTERS_DIR": str(tmp_path / "adapters"),
            "RLRUN_ORDER_PATH": str(tmp_path / "order.json"),
            **storage.variables(StorageRole.serving, ""),
            "RLRUN_MAX_LORA_RANK": "16",
            "RLRUN_SIDECAR_PORT": str(port),
            "RLRUN_CHECK_PAUSE": "0.1",
            "RLRUN_TOKEN": TOKEN,
        }
        environment[GRANT_VARIABLE] = ""
        yield Pod(tmp_path, engine, s3_server, port, environment)
    await server.close()


async def test_a_pod_serves_the_adapters_of_its_mounted_order_and_of_later_orders(pod: Pod) -> None:
    layout = RunLayout.of(pod.s3.bucket, "", "team", "uid-1")
    wanted = []
    for step in (1, 2):
        files = {"adapter_model.safetensors": b"weights %d" % step, "adapter_config.json": b"{}"}
        uri = layout.adapter(step)
        pod.s3.store().upload_artifact(files, uri, ArtifactKind.adapter, step=step, details={"rank": 8})
        wanted.append(ServedAdapter(name=f"{BASE}:step-{step}", uri=str(uri), step=step))
    pod.mount(DesiredAdapters(base=BASE, adapters=wanted[:1], grant=pod.grant(wanted[0].uri)))
    process = await pod.start()
    try:
        await pod.wait_for(LoadState.loaded)
        order = DesiredAdapters(base=BASE, adapters=wanted[1:], grant=pod.grant(wanted[1].uri))
        url = f"http://127.0.0.1:{pod.port}"
        async with aiohttp.ClientSession(url) as http:
            for headers, status in ((None, 401), (bearer("another"), 401), (bearer(TOKEN), 200)):
                async with http.put("/adapters", json=order.to_json_dict(), headers=headers) as response:
                    assert response.status == status
            assert (await pod.wait_for(LoadState.loaded)).order == order
            async with http.get("/readyz") as response:
                assert response.status == 200
        assert list(pod.engine.loaded) == [f"{BASE}:step-2"]
        (path,) = pod.engine.loaded.values()
        assert (Path(path) / "adapter_model.safetensors").read_bytes() == b"weights 2"
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), SECONDS) == ExitCode.STOPPED


async def test_a_pod_without_a_mounted_order_exits_with_a_configuration_error(pod: Pod) -> None:
    process = await pod.start()
    assert await asyncio.wait_for(process.wait(), SECONDS) == 64
