"""The sidecar's proof with vLLM itself: an adapter that fits the model acts, one with other names is ignored."""

from pathlib import Path

import aiohttp
import pytest
from rlrun.protocol.access import bearer
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import ADAPTER_WEIGHTS
from rlrun_adapter_sidecar.engine.adapter_probe import AdapterProbe
from rlrun_adapter_sidecar.engine.vllm_client import Engine

from tests.support.engine_files import write_adapter
from tests.support.engine_wire import RANK, TOKEN, model_config


async def test_vllm_applies_an_adapter_that_fits_and_ignores_another_one(adapter_engine: str, tmp_path: Path) -> None:
    fitting = write_adapter(tmp_path / "fitting", model_config(), RANK)
    foreign = write_adapter(tmp_path / "foreign", model_config(), RANK)
    weights = (foreign / ADAPTER_WEIGHTS).read_bytes()
    (foreign / ADAPTER_WEIGHTS).write_bytes(weights.replace(b"model.model.layers", b"model.other.layers"))
    async with aiohttp.ClientSession(headers=bearer(TOKEN)) as http:
        engine = Engine(http, adapter_engine, load_deadline=300)
        probe = AdapterProbe(engine, tmp_path)
        await probe.check(fitting)
        with pytest.raises(ProblemError, match="AdapterIgnored"):
            await probe.check(foreign)
        assert await engine.adapters() == []
