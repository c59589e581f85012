"""Metrics of runs, which the sidecar takes from the engine for each scrape."""

import asyncio
import json

import pytest
from rlrun.protocol.pool_usage import PoolUsage, RunUsage, TokenKind
from rlrun_adapter_sidecar.pools import engine_usage
from rlrun_adapter_sidecar.pools.engine_usage import FRESH_SECONDS

from tests.unit.rlrun_adapter_sidecar.pools.conftest import ONE, Pool

SERIES = f'rlrun_pool_device_seconds_total{{run="{ONE.uid}"}}'


def usage(seconds: float) -> str:
    run = RunUsage(tokens={TokenKind.sampled: 3}, device_seconds=seconds)
    return json.dumps(PoolUsage(idle_seconds=2, waiting=1, runs={ONE.uid: run}).to_json_dict())


async def scrape(pool: Pool) -> list[str]:
    """Return the metrics of runs."""
    status, text = await pool.call(None, "GET", "/metrics")
    assert status == 200
    assert "rlrun_sidecar_adapters 0.0" in text
    pool.clock.now += FRESH_SECONDS
    return [line for line in text.splitlines() if line.startswith("rlrun_pool_")]


async def test_a_scrape_has_the_current_usage_of_the_engine(pool: Pool) -> None:
    for seconds in (1.5, 2.5):
        pool.engine.usage = usage(seconds)
        assert await scrape(pool) == [
            f'rlrun_pool_tokens_total{{kind="sampled",run="{ONE.uid}"}} 3.0',
            f"{SERIES} {seconds}",
            f'rlrun_pool_requests_refused_total{{run="{ONE.uid}"}} 0.0',
            "rlrun_pool_idle_seconds_total 2.0",
            "rlrun_pool_requests_waiting 1.0",
        ]


@pytest.mark.parametrize("answer", [None, "", "{", "[]", "{}", '{"idleSeconds": -1}', "x" * 2 * 1024**2])
async def test_without_an_answer_the_metrics_are_absent_and_not_those_of_before(answer: str | None, pool: Pool) -> None:
    pool.engine.usage = usage(1.5)
    assert await scrape(pool)
    pool.engine.usage = answer
    assert await scrape(pool) == []
    pool.engine.usage = usage(2.5)
    assert f"{SERIES} 2.5" in await scrape(pool)


async def test_a_silent_engine_delays_a_scrape_up_to_the_deadline(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_usage, "QUERY_SECONDS", 0.05)
    pool.engine.usage, pool.engine.silent = usage(1.5), True
    assert await scrape(pool) == []


async def test_many_scrapes_are_one_query(pool: Pool) -> None:
    pool.engine.usage = usage(1.5)
    await asyncio.gather(*(pool.call(None, "GET", "/metrics") for _ in range(20)))
    assert pool.engine.usage_queries == 1
    pool.clock.now += FRESH_SECONDS
    await pool.call(None, "GET", "/metrics")
    assert pool.engine.usage_queries == 2
