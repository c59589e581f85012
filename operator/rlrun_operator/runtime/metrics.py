"""Prometheus metrics of the operator."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from rlrun.api.base.phases import Phase
from rlrun.constants import Reason

REGISTRY = CollectorRegistry()

RECONCILE_SECONDS = Histogram(
    "rlrun_reconcile_duration_seconds",
    "Duration of one reconcile of one run or pool.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
ERRORS = Counter("rlrun_reconcile_errors_total", "Failed reconciles, which are retried.", ["reason"], registry=REGISTRY)
WATCHED_ORCHESTRATORS = Gauge(
    "rlrun_watched_orchestrators", "Orchestrators whose status is watched by a long poll.", registry=REGISTRY
)
API_REQUESTS = Counter(
    "rlrun_api_requests_total",
    "Requests to the API server by verb and kind.",
    ["verb", "kind"],
    registry=REGISTRY,
)
S3_LISTINGS = Counter("rlrun_s3_listings_total", "S3 listings of a run's checkpoints and adapters.", registry=REGISTRY)
GARBAGE_SWEEPS = Counter(
    "rlrun_garbage_sweeps_total", "Sweeps of garbage collection, by outcome.", ["outcome"], registry=REGISTRY
)
GARBAGE_ITEMS = Gauge(
    "rlrun_garbage_items", "Items that the last sweep found, by reason.", ["reason"], registry=REGISTRY
)
CACHE_BYTES = Gauge("rlrun_cache_bytes", "Size of the objects stored by the informers, in bytes.", registry=REGISTRY)
POLL_ERRORS = Counter("rlrun_poll_errors_total", "Polls of orchestrators that failed.", registry=REGISTRY)
STATUS_WRITES = Counter("rlrun_status_writes_total", "Writes of a run's status.", registry=REGISTRY)
RUN_PHASES = Counter(
    "rlrun_run_transitions_total", "Runs that reached a phase, by phase.", ["phase"], registry=REGISTRY
)
RUN_FAILURES = Counter(
    "rlrun_run_failures_total",
    "Runs that failed, by reason, and by cause: platform if the platform team must act, run otherwise.",
    ["reason", "cause"],
    registry=REGISTRY,
)
LEADING = Gauge("rlrun_leading", "1 while this process holds the Lease.", registry=REGISTRY)
S3_CALLS = Counter("rlrun_s3_calls_total", "Calls of the operator to S3, by outcome.", ["outcome"], registry=REGISTRY)
S3_BREAKER_OPEN = Gauge(
    "rlrun_s3_breaker_open",
    "1 while an S3 endpoint does not respond, so that the operator's calls fail immediately.",
    ["endpoint"],
    registry=REGISTRY,
)

PLATFORM_CAUSES = frozenset(
    {
        Reason.QUEUE_MISCONFIGURED,
        Reason.PLACEMENT_CONFLICT,
        Reason.KUEUE_UNAVAILABLE,
        Reason.MODEL_INVALID,
        Reason.S3_CREDENTIALS_MISSING,
        Reason.EGRESS_UNAVAILABLE,
        Reason.OBJECT_REFUSED,
        Reason.IMAGE_PULL_FAILED,
        Reason.CREATE_FAILED,
        Reason.NODE_UNREACHABLE,
        Reason.VOLUME_MOUNT_FAILED,
        Reason.POD_SANDBOX_FAILED,
        Reason.POD_REJECTED,
        Reason.INJECTED_CONTAINER_FAILED,
        Reason.READINESS_GATE_CLOSED,
        Reason.INFERENCE_OUT_OF_MEMORY,
        Reason.ORCHESTRATOR_OUT_OF_MEMORY,
        Reason.TRAINER_OUT_OF_DISK,
        Reason.INFERENCE_OUT_OF_DISK,
        Reason.ORCHESTRATOR_OUT_OF_DISK,
        Reason.TRAINER_CRASHED,
        Reason.INFERENCE_CRASHED,
        Reason.ORCHESTRATOR_CRASHED,
        Reason.ORCHESTRATOR_FAILED,
        Reason.S3_UNREACHABLE,
        Reason.S3_ACCESS_DENIED,
        Reason.S3_BUCKET_MISSING,
        Reason.S3_FULL,
        Reason.S3_ERROR,
        Reason.S3_NOT_IMPLEMENTED,
        Reason.STORAGE_SERVER_UNAVAILABLE,
        Reason.STORAGE_ACCESS_DENIED,
        Reason.STORAGE_UNSAFE,
        Reason.INVALID_MODEL_SOURCE,
        Reason.MODEL_ACCESS_DENIED,
        Reason.MODEL_HUB_UNREACHABLE,
        Reason.MODEL_FOLDER_NOT_WRITABLE,
        Reason.DISK_FULL,
        Reason.MODEL_MISSING,
        Reason.MODEL_LOAD_FAILED,
        Reason.MODEL_UNSUPPORTED,
        Reason.DEVICE_MISSING,
        Reason.TRAINER_DISK_FULL,
        Reason.TRAINER_ERROR,
        Reason.INFERENCE_FAILED,
        Reason.ENGINE_UNREACHABLE,
        Reason.ADAPTERS_FOLDER_NOT_WRITABLE,
        Reason.ORCHESTRATOR_UNREACHABLE,
        Reason.INTERNAL_ERROR,
    }
)
"""Reasons of failed runs that require action by the platform team."""


def count_failure(reason: str) -> None:
    """Count a run that failed."""
    RUN_FAILURES.labels(reason, "platform" if reason in PLATFORM_CAUSES else "run").inc()


# Prometheus does not see the first increase of a series that starts at 1.
for _reason in PLATFORM_CAUSES:
    RUN_FAILURES.labels(_reason, "platform")
for _outcome in ("completed", "failed"):
    GARBAGE_SWEEPS.labels(_outcome)
for _phase in Phase:
    RUN_PHASES.labels(_phase.value)


class GpuSecondsCollector(Collector):
    """Counter of GPU-seconds held by runs, serving pools and shared pools, advanced at each scrape."""

    def __init__(self, held: Callable[[], Iterable[tuple[str, str, int]]], clock: Callable[[], float]) -> None:
        """`held` returns kind, model and number of GPUs of each holder. `clock` is a monotonic clock in seconds."""
        self._held = held
        self._clock = clock
        self._time = clock()
        self._before: list[tuple[str, str, int]] = []
        """Holders at the previous scrape. Empty on a standby replica."""
        self._seconds: dict[tuple[str, str], float] = {}

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the current metrics."""
        now = self._clock()
        for kind, model, gpus in self._before:
            self._seconds[kind, model] = self._seconds.get((kind, model), 0.0) + gpus * (now - self._time)
        self._time, self._before = now, list(self._held())
        found = CounterMetricFamily(
            "rlrun_gpu_seconds",
            "GPU-seconds held by runs (run) and serving pools (serving).",
            labels=["kind", "model"],
        )
        for (kind, model), seconds in self._seconds.items():
            found.add_metric([kind, model], seconds)
        yield found


class RunPhaseCollector(Collector):
    """Collector of runs by phase and of the work queue's depth, computed at each scrape."""

    def __init__(
        self, phases: Callable[[], Iterable[str]], queue_depth: Callable[[], int], delayed: Callable[[], int]
    ) -> None:
        """`phases` returns the phase of each run, or an empty string before the run's first reconcile."""
        self._phases = phases
        self._queue_depth = queue_depth
        self._delayed = delayed

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current metrics."""
        runs = GaugeMetricFamily("rlrun_runs", "Runs by phase.", labels=["phase"])
        counts = Counts(phase or Phase.pending.value for phase in self._phases())
        for phase in Phase:
            runs.add_metric([phase.value], counts.get(phase.value, 0))
        yield runs
        yield GaugeMetricFamily("rlrun_queue_depth", "Runs that wait for a worker.", value=self._queue_depth())
        yield GaugeMetricFamily("rlrun_queue_delayed", "Runs scheduled for a later reconcile.", value=self._delayed())
