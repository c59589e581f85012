"""Threads of a pool's sidecar while S3 does not respond."""

import asyncio
import threading
from pathlib import Path

import pytest
from rlrun.constants import ExitCode
from rlrun.protocol.shared_pool import MAX_RUNS
from rlrun.storage.store import Store
from rlrun_adapter_sidecar.pools import __main__ as process
from rlrun_adapter_sidecar.pools.settings import PoolSettings

from tests.support.ports import claimed_ports
from tests.support.waiting import until
from tests.unit.rlrun_adapter_sidecar.pools.conftest import ONE, POOL_TOKEN, GrantedStore, order_of


async def test_an_s3_that_hangs_for_all_runs_leaves_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, store, released = asyncio.Event(), GrantedStore(), threading.Event()
    monkeypatch.setattr(process, "stop_event", lambda: stop)
    monkeypatch.setattr(Store, "of_process", lambda: store)
    (tmp_path / "order.json").write_text(order_of(ONE).model_dump_json(by_alias=True))
    (tmp_path / "adapters").mkdir()
    with claimed_ports(2) as (port, engine_port):
        settings = PoolSettings(
            adapters_dir=tmp_path / "adapters",
            engine_url=f"http://127.0.0.1:{engine_port}",
            order_path=tmp_path / "order.json",
            sidecar_port=port,
            token=POOL_TOKEN,
        )
        serving = asyncio.create_task(process.serve(settings))
        await until(lambda: hasattr(store, "grant"))
        hanging = [asyncio.get_running_loop().run_in_executor(None, released.wait) for _ in range(3 * MAX_RUNS)]
        try:
            async with asyncio.timeout(30):
                await asyncio.to_thread(lambda: None)
        finally:
            released.set()
            await asyncio.gather(*hanging)
            stop.set()
            assert await serving == ExitCode.STOPPED
