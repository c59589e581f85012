from prometheus_client import CollectorRegistry, generate_latest
from rlrun.protocol.pool_usage import PoolUsage, RunUsage, TokenKind
from rlrun.service.pool_metrics import PoolUsageCollector


def metrics(usage: PoolUsage | None) -> list[str]:
    registry = CollectorRegistry()
    registry.register(PoolUsageCollector(lambda: usage))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_the_metrics_of_an_engine_and_a_trainer_have_the_same_names() -> None:
    engine = RunUsage(tokens={TokenKind.prompt: 9, TokenKind.cached: 4}, device_seconds=1.5, refused=2)
    trainer = RunUsage(tokens={TokenKind.trained: 13}, device_seconds=0.25)
    assert metrics(PoolUsage(idle_seconds=7, waiting=3, runs={"u-1": engine, "u-2": trainer})) == [
        'rlrun_pool_tokens_total{kind="prompt",run="u-1"} 9.0',
        'rlrun_pool_tokens_total{kind="cached",run="u-1"} 4.0',
        'rlrun_pool_tokens_total{kind="trained",run="u-2"} 13.0',
        'rlrun_pool_device_seconds_total{run="u-1"} 1.5',
        'rlrun_pool_device_seconds_total{run="u-2"} 0.25',
        'rlrun_pool_requests_refused_total{run="u-1"} 2.0',
        'rlrun_pool_requests_refused_total{run="u-2"} 0.0',
        "rlrun_pool_idle_seconds_total 7.0",
        "rlrun_pool_requests_waiting 3.0",
    ]


def test_without_a_usage_there_are_no_metrics() -> None:
    assert metrics(None) == []
