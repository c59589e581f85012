"""The sidecar of a shared pool as a process of its own, while S3 does not respond."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.constants import ExitCode
from rlrun.protocol.access import bearer
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.shared_pool import ORDER_FILE, engine_name

from tests.support.fake_engine import FakeEngine
from tests.support.fake_policy_server import FakePolicyServer
from tests.support.ports import claimed_ports
from tests.support.source_tree import PYTHONPATH
from tests.support.waiting import until
from tests.unit.rlrun_adapter_sidecar.pools.conftest import ONE, POOL_TOKEN, TWO, order_of

SECONDS = 30
pytestmark = pytest.mark.slow


@dataclass
class Pod:
    """A pod's files and engine, and a trainer."""

    folder: Path
    engine: FakeEngine
    trainer: FakePolicyServer
    url: str
    environment: dict[str, str] = field(repr=False)

    async def start(self) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "rlrun_adapter_sidecar.pools")
        return await asyncio.create_subprocess_exec(*command, env=os.environ | self.environment)

    async def wait_until_ready(self) -> None:
        async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"{self.url}/readyz") as response:
                        assert response.status == 200
                        return
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

    async def send(self, token: str, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(self.url, headers=bearer(token)) as http,
            http.request(method, path, json=body) as response,
        ):
            return response.status, await response.json()


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[Pod]:
    engine, trainer = FakeEngine(token=POOL_TOKEN), FakePolicyServer()
    async with TestServer(engine.app()) as engine_server, TestServer(trainer.app()) as trainer_server:
        trainer.url = f"http://127.0.0.1:{trainer_server.port}"
        (tmp_path / "adapters").mkdir()
        with claimed_ports(2) as (port, closed):
            environment = {
                "PYTHONPATH": PYTHONPATH,
                "RLRUN_ENGINE_URL": f"http://127.0.0.1:{engine_server.port}",
                "RLRUN_ADAPTERS_DIR": str(tmp_path / "adapters"),
                "RLRUN_ORDER_PATH": str(tmp_path / "order.json"),
                "RLRUN_SIDECAR_PORT": str(port),
                "RLRUN_TOKEN": POOL_TOKEN,
                "RLRUN_S3_CONNECTION": json.dumps({"endpoint": f"http://127.0.0.1:{closed}"}),
                "AWS_ACCESS_KEY_ID": "none",
                "AWS_SECRET_ACCESS_KEY": "none",
            }
            yield Pod(tmp_path, engine, trainer, f"http://127.0.0.1:{port}", environment)


async def test_a_pod_serves_the_runs_of_its_mounted_order_and_of_later_orders(pod: Pod) -> None:
    (pod.folder / "order.json").write_text(order_of(ONE).model_dump_json(by_alias=True))
    stale = PolicyRef(version=1, digest="0" * 64, uri=f"{TWO.folder}/v000001-00000000")
    pod.engine.loaded[engine_name(TWO.uid, stale.name)] = "/left/by/another/order"
    process = await pod.start()
    try:
        await pod.wait_until_ready()
        policy = pod.trainer.publish(1, b"weights")
        status, body = await pod.send(ONE.token, "PUT", f"/adapters/{policy.name}", policy.to_json_dict())
        assert (status, body["adapters"]) == (200, [policy.name])
        assert set(pod.trainer.authorizations) == {f"Bearer {ONE.token}"}
        assert list(pod.engine.loaded) == [engine_name(ONE.uid, policy.name)]
        order = order_of(TWO)
        assert await pod.send(POOL_TOKEN, "PUT", "/pool-order", order.to_json_dict()) == (200, order.to_json_dict())
        assert (await pod.send(ONE.token, "GET", "/adapters"))[0] == 401
        assert await pod.send(TWO.token, "GET", "/adapters") == (200, {"adapters": []})
        written = json.loads((pod.folder / "adapters" / ORDER_FILE).read_text())
        assert written == order.to_json_dict() | {"grant": ""}
        await until(lambda: pod.engine.loaded == {})
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), SECONDS) == ExitCode.STOPPED


async def test_a_pod_without_a_mounted_order_exits_with_a_configuration_error(pod: Pod) -> None:
    process = await pod.start()
    assert await asyncio.wait_for(process.wait(), SECONDS) == ExitCode.CONFIGURATION
