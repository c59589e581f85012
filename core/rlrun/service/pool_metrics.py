"""Prometheus metrics of a shared pool's processes: the usage of each process by run."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rlrun.protocol.pool_usage import PoolUsage


class PoolUsageCollector(Collector):
    """Collector of a process's usage by run. The label `run` is the run's uid."""

    def __init__(self, current_usage: Callable[[], PoolUsage | None]) -> None:
        """`current_usage` returns the usage at a scrape. While it returns None, the metrics are absent."""
        self._current_usage = current_usage

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        usage = self._current_usage()
        if usage is None:
            return
        tokens = CounterMetricFamily(
            "rlrun_pool_tokens_total", "Tokens of a run by kind; prompt includes cached.", labels=["run", "kind"]
        )
        seconds = CounterMetricFamily(
            "rlrun_pool_device_seconds_total", "Seconds during which the process worked for a run.", labels=["run"]
        )
        refused = CounterMetricFamily(
            "rlrun_pool_requests_refused_total",
            "Requests refused because too many requests of the run were in progress.",
            labels=["run"],
        )
        for uid, run in usage.runs.items():
            seconds.add_metric([uid], run.device_seconds)
            refused.add_metric([uid], run.refused)
            for kind, count in run.tokens.items():
                tokens.add_metric([uid, kind], count)
        yield from (tokens, seconds, refused)
        idle = "Seconds during which the process worked for no run."
        yield CounterMetricFamily("rlrun_pool_idle_seconds_total", idle, value=usage.idle_seconds)
        yield GaugeMetricFamily("rlrun_pool_requests_waiting", "Requests waiting for their turn.", usage.waiting)
