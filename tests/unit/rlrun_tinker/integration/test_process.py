"""`python -m rlrun_tinker` with a fake of rlrun-server behind TLS."""

import asyncio
import os
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from rlrun.service.listening import listen
from rlrun_operator.runtime.server_certificate import make_certificate
from rlrun_server.http.serving import serving_on

from tests.support.ports import claimed_ports
from tests.support.source_tree import PYTHONPATH
from tests.support.tinker_backend import FakeRunServer, FakeTrainer


@pytest.mark.slow
async def test_the_process_trusts_rlrun_server_serves_and_ends(tmp_path: Path) -> None:
    for name, content in make_certificate("localhost", datetime.now(UTC)).items():
        (tmp_path / name).write_bytes(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    sockets = listen("127.0.0.1", 0)
    with claimed_ports(3) as (port, tls_port, metrics_port):
        settings = {
            "SERVER": f"https://localhost:{sockets[0].getsockname()[1]}",
            "SERVER_AUTHORITY": str(tmp_path / "ca.crt"),
            "PORT": str(port),
            "TLS": str(tmp_path),
            "TLS_PORT": str(tls_port),
            "METRICS_PORT": str(metrics_port),
        }
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": PYTHONPATH,
            **{f"RLRUN_TINKER_{name}": value for name, value in settings.items()},
        }
        client_tls = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        async with (
            serving_on(FakeRunServer(FakeTrainer()).app(), sockets, tls),
            httpx.AsyncClient(verify=client_tls, trust_env=False) as client,
        ):
            process = await asyncio.create_subprocess_exec(sys.executable, "-m", "rlrun_tinker", env=environment)
            try:
                await _ready(client, f"http://127.0.0.1:{metrics_port}/readyz", process)
                headers = {"X-API-Key": "tml-ann"}
                url = f"https://localhost:{tls_port}/api/v1/create_session"
                answer = await client.post(url, json={"tags": []}, headers=headers)
                assert answer.json()["session_id"].endswith(".team"), answer.text
                metrics = (await client.get(f"http://127.0.0.1:{metrics_port}/metrics")).text
                assert 'rlrun_tinker_requests_total{route="/create_session",status="200"} 1.0' in metrics
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 30) == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


async def _ready(client: httpx.AsyncClient, url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while process.returncode is None:
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    raise AssertionError("rlrun-tinker ended")
