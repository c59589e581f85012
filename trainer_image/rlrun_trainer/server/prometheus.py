"""Prometheus metrics of every session's newest step, under the names that prime-rl's dashboards use."""

import time
from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from rlrun.protocol.pool_usage import PoolUsage
from rlrun.protocol.trainer import StepResult
from rlrun.service.pool_metrics import PoolUsageCollector

GAUGES = {
    "trainer_loss": ("loss/mean", "Loss of the newest step"),
    "trainer_throughput_tokens_per_sec": ("perf/throughput", "Tokens trained per second"),
    "trainer_grad_norm": ("optim/grad_norm", "Gradient norm before clipping"),
    "trainer_learning_rate": ("optim/lr", "Learning rate"),
    "trainer_entropy": ("entropy/all/mean", "Mean entropy of the policy over trainable tokens, in nats"),
    "trainer_mismatch_kl": ("mismatch_kl/all/mean", "Mean r - log r - 1 between trainer and engine, in nats"),
    "trainer_mfu_percent": ("perf/mfu", "Model FLOPs utilization of the newest step, only for known GPUs"),
    "trainer_step_seconds": ("time/step", "Seconds of the newest step, including publication"),
    "trainer_peak_memory_gib": ("perf/peak_memory", "Maximum GPU memory of the newest step"),
}
LABELS = ("session",)


class TrainerMetrics:
    """Prometheus metrics of the process, with a label for the session."""

    def __init__(self, pool_usage: Callable[[], PoolUsage | None] | None = None) -> None:
        """`pool_usage` returns the usage of a shared pool's trainer, or None while it is unknown."""
        self._registry = CollectorRegistry()
        if pool_usage is not None:
            self._registry.register(PoolUsageCollector(pool_usage))
        self._sessions: set[str] = set()
        """Sessions that have metrics."""
        self._step = Gauge("trainer_step", "Optimizer steps done", LABELS, registry=self._registry)
        self._time = Gauge(
            "trainer_last_step_timestamp_seconds",
            "Time at which the newest step ended",
            LABELS,
            registry=self._registry,
        )
        self._ratio = Gauge(
            "trainer_kl_ent_ratio",
            "Ratio of mismatch to entropy; at 1 the mismatch is as large as the policy's entropy",
            LABELS,
            registry=self._registry,
        )
        self._gauges = {
            name: (key, Gauge(name, text, LABELS, registry=self._registry)) for name, (key, text) in GAUGES.items()
        }

    def set_step(self, session: str, step: int) -> None:
        """Set the number of steps of a session."""
        self._sessions.add(session)
        self._step.labels(session).set(step)

    def on_step(self, session: str, result: StepResult) -> None:
        """Record the metrics of a session's step."""
        self._sessions.add(session)
        self._step.labels(session).set(result.step)
        self._time.labels(session).set(time.time())
        for key, gauge in self._gauges.values():
            if key in result.metrics:
                gauge.labels(session).set(result.metrics[key])
        entropy, mismatch = result.metrics.get("entropy/all/mean"), result.metrics.get("mismatch_kl/all/mean")
        if entropy and mismatch is not None:
            self._ratio.labels(session).set(mismatch / entropy)

    def keep_only(self, sessions: Collection[str]) -> None:
        """Remove the metrics of all other sessions, which are closed."""
        for session in self._sessions.difference(sessions):
            for gauge in (self._step, self._time, self._ratio, *(g for _, g in self._gauges.values())):
                gauge.remove_by_labels({"session": session})
        self._sessions.intersection_update(sessions)

    def text(self) -> bytes:
        """Return the metrics in the exposition format."""
        return generate_latest(self._registry)
