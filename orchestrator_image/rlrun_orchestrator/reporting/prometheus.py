"""Prometheus metrics of the run: progress, groups and gateway, read at the moment of the scrape."""

import re
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rlrun_orchestrator.data.reward_histogram import RewardHistograms
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.gateway.request_router import RoutingStats
from rlrun_orchestrator.inference.replica_pool import ReplicaPool
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.storage.run_recorder import RunRecorder


def metric_name(name: str) -> str:
    """Return the Prometheus name: `reward/mean` becomes `rlrun_reward_mean`."""
    return "rlrun_" + re.sub(r"[^a-zA-Z0-9_]+", "_", name).strip("_")


class RunCollector(Collector):
    """Collects the newest value of each step and evaluation metric under its own name, and current counters."""

    def __init__(
        self,
        schedule: RunSchedule,
        progress: RunProgress,
        latest_metrics: Callable[[], Mapping[str, float]],
        pool: ReplicaPool,
        groups: LiveGroups,
        routing: RoutingStats,
        recorder: RunRecorder | None,
        rewards: RewardHistograms | None = None,
    ) -> None:
        self._schedule = schedule
        self._progress = progress
        self._latest_metrics = latest_metrics
        self._pool = pool
        self._groups = groups
        self._routing = routing
        self._recorder = recorder
        self._rewards = rewards or RewardHistograms()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. The registry calls this for each scrape."""
        progress = self._progress
        yield GaugeMetricFamily("rlrun_step", "Completed optimizer steps", progress.step)
        yield GaugeMetricFamily("rlrun_max_steps", "Number of optimizer steps of the run", self._schedule.max_steps)
        yield GaugeMetricFamily("rlrun_policy_version", "Policy version of new groups", progress.policy_version)
        yield GaugeMetricFamily("rlrun_groups_live", "Groups that may use the gateway", len(self._groups))
        groups = CounterMetricFamily("rlrun_groups", "Groups by outcome", labels=["outcome"])
        for outcome in ("trained", "filtered", "errored", "stale"):
            groups.add_metric([outcome], getattr(progress.groups, outcome))
        yield groups
        replicas = GaugeMetricFamily("rlrun_inference_replicas", "Inference replicas by state", labels=["state"])
        current = self._pool.current.name if self._pool.current else ""
        for state, count in (
            ("known", len(self._pool.replicas)),
            ("answering", sum(replica.is_answering for replica in self._pool.replicas.values())),
            ("serving", self._pool.serving(current)),
        ):
            replicas.add_metric([state], count)
        yield replicas
        inflight = sum(replica.requests for replica in self._pool.replicas.values())
        yield GaugeMetricFamily(
            "rlrun_gateway_requests_in_flight", "Completions and tokenizations at the engines", inflight
        )
        for name, value, text in (
            ("rlrun_gateway_requests", self._routing.requests, "Requests for completions or tokenization"),
            ("rlrun_gateway_retries", self._routing.retries, "Failed attempts to send requests"),
            ("rlrun_gateway_failures", self._routing.failures, "Requests that no replica could serve"),
            ("rlrun_reward_errors", progress.reward_errors, "Rollouts whose reward failed"),
            ("rlrun_rollout_errors", progress.rollout_errors, "Rollouts that failed"),
            ("rlrun_trainer_restarts", progress.trainer_restarts, "Sessions that the trainer lost"),
            ("rlrun_lost_writes", self._recorder.dropped_objects if self._recorder else 0, "Objects not written to S3"),
        ):
            yield CounterMetricFamily(name, text, value)
        if self._recorder is not None:
            spool = self._recorder.spool
            yield GaugeMetricFamily("rlrun_s3_waiting_objects", "Objects waiting for S3", len(spool))
            yield GaugeMetricFamily("rlrun_s3_waiting_bytes", "Bytes of objects waiting for S3", spool.bytes)
        histogram = HistogramMetricFamily(
            "rlrun_reward", "Rewards of valid rollouts in batches", labels=["environment"]
        )
        for environment, found in sorted(self._rewards.by_environment.items()):
            buckets = found.cumulative()
            histogram.add_metric([environment], buckets, None)
            # The client library omits these two samples if there are buckets below 0.
            histogram.add_sample("rlrun_reward_count", {"environment": environment}, buckets[-1][1])
            histogram.add_sample("rlrun_reward_sum", {"environment": environment}, found.total)
        yield histogram
        refusals = CounterMetricFamily("rlrun_gateway_refusals", "Rejected requests by reason", labels=["reason"])
        for reason, count in self._routing.refusals.items():
            refusals.add_metric([reason], count)
        yield refusals
        chats = CounterMetricFamily(
            "rlrun_gateway_continued_chats", "Chats that continue an earlier chat, by token prefix", labels=["prefix"]
        )
        for prefix in ("exact", "bridged", "broken"):
            chats.add_metric([prefix], self._routing.prefixes[prefix])
        yield chats
        # Two metrics may map to the same Prometheus name, and a repeated family would make the whole page invalid.
        for name, (text, number) in {metric_name(n): (n, v) for n, v in self._latest_metrics().items()}.items():
            yield GaugeMetricFamily(name, f"{text}, newest value", number)


def make_registry(collector: RunCollector) -> CollectorRegistry:
    """Return a registry that contains only a RunCollector."""
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
