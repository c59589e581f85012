"""The unmodified SDK against rlrun-tinker with fakes of rlrun-server and the trainer.

RLRUN_TINKER_PYTHON is a Python with tinker 0.38.0 and torch: their environment is not that of this project.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.support.tinker_backend import LOGPROB, MODEL, serving_tinker

PYTHON = os.environ.get("RLRUN_TINKER_PYTHON", "")
LOOP = Path(__file__).parents[3] / "support" / "tinker_sdk_check.py"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="RLRUN_TINKER_PYTHON is not set")
async def test_a_loop_of_the_sdk_trains_saves_and_continues(tmp_path: Path) -> None:
    async with serving_tinker(poll_seconds=5.0) as backend:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "HOME": str(tmp_path),
            "TINKER_BASE_URL": backend.url,
            "TINKER_API_KEY": "tml-ann",
            "OMP_NUM_THREADS": "1",
        }
        process = await asyncio.create_subprocess_exec(
            PYTHON, str(LOOP), MODEL, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        stdout, stderr = await asyncio.wait_for(process.communicate(), 300)
        assert process.returncode == 0, stderr.decode()[-5000:]
    found = json.loads(stdout.splitlines()[-1])
    assert found["metrics"][0]["loss:sum"] == 3 * 1.5, "the SDK sums the metrics of three chunks"
    assert found["metrics"][2]["loss:sum"] == pytest.approx(10 * 8 * LOGPROB**2)
    # Every command arrived twice, and ran once.
    assert {backend.trainer.arrived.count(seq) for seq in (2, 3)} == {2}
    first = next(model for (_, run), model in backend.server.models.items() if run.endswith("-0"))
    assert list(backend.trainer.names[first.uid].weights) == ["loop"]
    assert not backend.trainer.names[first.uid].sampler_weights
