"""Prometheus metrics of the operator."""

from collections import Counter as Counts
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from rlrun.api.base.phases import Phase

REGISTRY = CollectorRegistry()

RECONCILE_SECONDS = Histogram(
    "rlrun_reconcile_duration_seconds",
    "Duration of one reconcile of one run or pool.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
ERRORS = Counter("rlrun_reconcile_errors_total", "Failed reconciles, which are retried.", ["reason"], registry=REGISTRY)
WATCHED_ORCHESTRATORS = Gauge(
    "rlrun_watched_orchestrators", "Orchestrators whose status is watched by a hanging request.", registry=REGISTRY
)
API_REQUESTS = Counter(
    "rlrun_api_requests_total",
    "Requests to the API server by verb and kind, without those of kopf's watches.",
    ["verb", "kind"],
    registry=REGISTRY,
)
S3_LISTINGS = Counter(
    "rlrun_s3_listings_total", "Lists of the checkpoints and adapters of a run in S3.", registry=REGISTRY
)
CACHE_BYTES = Gauge(
    "rlrun_cache_bytes", "Compressed bytes of the API server's answers that are kept.", registry=REGISTRY
)
POLL_ERRORS = Counter("rlrun_poll_errors_total", "Polls of orchestrators without an answer.", registry=REGISTRY)
STATUS_WRITES = Counter("rlrun_status_writes_total", "Writes of a run's status.", registry=REGISTRY)
RUN_PHASES = Counter(
    "rlrun_run_transitions_total", "Runs that reached a phase, by phase.", ["phase"], registry=REGISTRY
)
LEADING = Gauge("rlrun_leading", "1 while this process holds the lease.", registry=REGISTRY)
S3_CALLS = Counter("rlrun_s3_calls_total", "Calls of the operator to S3, by outcome.", ["outcome"], registry=REGISTRY)
S3_BREAKER_OPEN = Gauge(
    "rlrun_s3_breaker_open",
    "1 while an S3 endpoint does not answer, so that the operator's calls fail at once.",
    ["endpoint"],
    registry=REGISTRY,
)


class RunPhaseCollector(Collector):
    """Collector of the runs by phase and of the queue's depth, computed at each scrape."""

    def __init__(self, queue_depth: Callable[[], int], delayed: Callable[[], int]) -> None:
        self._phases: dict[tuple[str, str], str] = {}
        self._queue_depth = queue_depth
        self._delayed = delayed

    def set_phase(self, namespace: str, name: str, phase: str | None) -> None:
        """Record the phase of a run. None removes the run."""
        if phase is None:
            self._phases.pop((namespace, name), None)
        else:
            self._phases[(namespace, name)] = phase

    def keys(self) -> list[tuple[str, str]]:
        """Return (namespace, name) of every known run."""
        return list(self._phases)

    def pending(self) -> list[tuple[str, str]]:
        """Return the runs in phase Pending."""
        return [key for key, phase in self._phases.items() if phase == Phase.pending.value]

    def unfinished_runs(self) -> list[tuple[str, str]]:
        """Return the runs that have not finished."""
        return [key for key, phase in self._phases.items() if not Phase(phase).finished]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current metrics."""
        runs = GaugeMetricFamily("rlrun_runs", "Runs by phase.", labels=["phase"])
        counts = Counts(self._phases.values())
        for phase in Phase:
            runs.add_metric([phase.value], counts.get(phase.value, 0))
        yield runs
        yield GaugeMetricFamily("rlrun_queue_depth", "Runs that wait for a worker.", value=self._queue_depth())
        yield GaugeMetricFamily("rlrun_queue_delayed", "Runs scheduled for a later reconcile.", value=self._delayed())
