"""The unmodified SDK against rlrun-tinker with fakes of rlrun-server, the trainer and the engines.

RLRUN_TINKER_PYTHON is a Python with tinker 0.38.0 and torch: their environment is not that of this project.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.tinker_backend import LOGPROB, MODEL, TinkerBackend, serving_tinker
from tests.support.tinker_engines import FakePool, prompt

PYTHON = os.environ.get("RLRUN_TINKER_PYTHON", "")
PROGRAMS = Path(__file__).parents[3] / "support"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="RLRUN_TINKER_PYTHON is not set"),
]


async def run(backend: TinkerBackend, home: Path, program: str, *arguments: str) -> Any:
    """Run a program with the SDK, and return what it prints as JSON."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "HOME": str(home),
        "TINKER_BASE_URL": backend.url,
        "TINKER_API_KEY": "tml-ann",
        "OMP_NUM_THREADS": "1",
    }
    command = [PYTHON, str(PROGRAMS / program), MODEL, *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    stdout, stderr = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, stderr.decode()[-5000:]
    return json.loads(stdout.splitlines()[-1])


async def test_a_loop_of_the_sdk_trains_saves_and_continues(tmp_path: Path) -> None:
    async with serving_tinker(poll_seconds=5.0) as backend:
        found = await run(backend, tmp_path, "tinker_sdk_check.py")
    assert found["metrics"][0]["loss:sum"] == 3 * 1.5, "the SDK sums the metrics of three chunks"
    assert found["metrics"][2]["loss:sum"] == pytest.approx(10 * 8 * LOGPROB**2)
    # Every command arrived twice, and ran once.
    assert {backend.trainer.arrived.count(seq) for seq in (2, 3)} == {2}
    first = next(model for (_, run), model in backend.server.models.items() if run.endswith("-0"))
    assert list(backend.trainer.names[first.uid].weights) == ["loop"]
    assert not backend.trainer.names[first.uid].sampler_weights


async def test_sampling_clients_of_the_sdk(tmp_path: Path) -> None:
    count = 200
    async with FakePool().serving(tmp_path, 2) as pool, serving_tinker(poll_seconds=5.0, pool=pool) as backend:
        found = await run(backend, tmp_path, "tinker_sampling_check.py", str(count), *map(str, prompt("abcd")))
        first, _, base = found["scores"]
        assert first != base, "the policy is another model than the base model"
        assert found["many"]["texts"] > 1
        policies = [{name.partition("_")[2][:14] for name in engine.adapters} for engine in pool.engines]
        assert "policy-v000001" in policies[0] & policies[1], "both engines sample"
        assert "policy-v000002" in policies[0] | policies[1], "an inflight client has the weights of its own save"
