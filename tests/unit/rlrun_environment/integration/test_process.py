"""The environment's server as a process: how it ends."""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest
from rlrun.constants import ExitCode

from tests.support.ports import claimed_ports
from tests.support.source_tree import PYTHONPATH

SECONDS = 60


@pytest.mark.slow
async def test_sigterm_is_no_success(tmp_path: Path) -> None:
    """The kubelet would report an evicted pod as Succeeded, and why it was evicted would be lost."""
    (tmp_path / "quiet.py").write_text("def load_environment():\n    import time\n    time.sleep(600)\n")
    with claimed_ports(1) as (port,):
        variables = {
            "PYTHONPATH": PYTHONPATH,
            "RLRUN_ENVIRONMENT": json.dumps({"id": "quiet"}),
            "RLRUN_ENVIRONMENT_DIR": str(tmp_path),
            "RLRUN_ENVIRONMENT_PORT": str(port),
            "RLRUN_ENVIRONMENT_TERMINATION_LOG": str(tmp_path / "ended"),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rlrun_environment"), env=os.environ | variables
        )
        try:
            await _until_healthy(f"http://127.0.0.1:{port}/healthz")
            process.terminate()
            assert await asyncio.wait_for(process.wait(), SECONDS) == ExitCode.STOPPED
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _until_healthy(url: str) -> None:
    async with asyncio.timeout(SECONDS), aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with http.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.1)
