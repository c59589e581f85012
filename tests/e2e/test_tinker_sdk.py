"""The unmodified SDK against rlrun-tinker with fakes of rlrun-server, the trainer and the engines, without a cluster.

The fakes record what arrives, which the real ones do not show (`test_tinker`). The SDK is in the image of the trainer.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.source_tree import ROOT
from tests.support.tinker_backend import LOGPROB, MODEL, TinkerBackend, serving_tinker
from tests.support.tinker_client import script, tinker_client
from tests.support.tinker_engines import FakePool, prompt


async def run(backend: TinkerBackend, folder: Path, program: str, *arguments: str) -> Any:
    """Run a program with the SDK, and return what it prints as JSON."""

    def run_there() -> str:
        folder.chmod(0o755)  # pytest's folders are closed to the image's user
        client = tinker_client(backend.url, "ann", folder / "home")
        return client.run("python", script(ROOT / "tests" / "support" / program), MODEL, *arguments)

    return json.loads((await asyncio.to_thread(run_there)).splitlines()[-1])


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
