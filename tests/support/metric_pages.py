"""The pages `/metrics` of all processes, from their real registries.

The page of the orchestrator is from a run in this process; the values of the others are set here. vLLM is not installed
beside the tests: its names are those of `tests/support/engine_wire.py`, which are compared with it inside its image.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rlrun.api.base.phases import Phase
from rlrun.protocol.pool_usage import PoolUsage, RunUsage, TokenKind
from rlrun.protocol.trainer import StepResult
from rlrun.service.pool_metrics import PoolUsageCollector
from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_egress_proxy import metrics as egress_metrics
from rlrun_environment.server import EnvironmentMetrics
from rlrun_operator.runtime import metrics as operator_metrics
from rlrun_operator.storage.artifact_store import CallOutcome
from rlrun_server.inference import usage
from rlrun_server.runtime import metrics as server_metrics
from rlrun_trainer.server.prometheus import GAUGES, TrainerMetrics

from tests.support.engine_wire import ENGINE_COUNTERS, ENGINE_GAUGES, ENGINE_HISTOGRAMS
from tests.support.policy_refs import policy
from tests.support.run_processes import RUN_URI, World

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
"""Ends of the names of samples, by the type of their family; others have the name of the family."""
IN_RUN = {"rlrun_dev_run": "first", "pod": "first-0"}


@dataclass(frozen=True)
class Page:
    """One process as Prometheus scrapes it."""

    text: str
    labels: dict[str, str]
    """Labels of its target, which the chart's monitors add."""

    @property
    def names(self) -> set[str]:
        """Names of its samples, those that have no value yet included."""
        return {
            family.name + end
            for family in text_string_to_metric_families(self.text)
            for end in SUFFIXES.get(family.type, ("",))
        }


def names(pages: Iterable[Page]) -> set[str]:
    """Return the names of all samples."""
    return {name for page in pages for name in page.names}


async def metric_pages(folder: Path) -> dict[str, Page]:
    """Return the pages by process. `folder` gets the files of the run."""
    return {
        "operator": _page(_operator(), pod="operator-0"),
        "server": _page(_server(), pod="server-0"),
        "egress": _page(_egress(), pod="egress-0"),
        "orchestrator": Page(await _of_a_run(folder), {"namespace": "team", **IN_RUN}),
        "trainer": Page(_trainer(), {"namespace": "team", **IN_RUN}),
        "environment": _page(_environment(), namespace="team", **IN_RUN),
        "sidecar": _page(_sidecar(), namespace="team", **IN_RUN),
        "engine": _page(_engine(), namespace="team", **IN_RUN),
    }


def _page(registry: CollectorRegistry, namespace: str = "rlrun-system", **labels: str) -> Page:
    return Page(generate_latest(registry).decode(), {"namespace": namespace, **labels})


async def _of_a_run(folder: Path) -> str:
    """Return the page of an orchestrator in the middle of its run."""
    world = World(folder, spec={"maxSteps": 1000})
    await world.start()
    running = asyncio.create_task(world.run())
    try:
        await world.until(lambda: world.trainer.step >= 5)
        url = f"http://127.0.0.1:{world.status_port}/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return await answer.text()
    finally:
        world.stop.set()
        await running
        for server in world.servers:
            await server.close()


def _operator() -> CollectorRegistry:
    metrics = operator_metrics
    collector = metrics.RunPhaseCollector(lambda: [Phase.running, Phase.queued], lambda: 0, lambda: 1)
    metrics.RECONCILE_SECONDS.observe(0.02)
    metrics.API_REQUESTS.labels("get", "rlruns").inc()
    metrics.S3_CALLS.labels(CallOutcome.ANSWERED).inc()
    metrics.S3_BREAKER_OPEN.labels("https://s3.example.com").set(0)
    metrics.LEADING.set(1)
    registry = CollectorRegistry()
    registry.register(metrics.REGISTRY)
    registry.register(collector)
    return registry


def _server() -> CollectorRegistry:
    metrics = server_metrics
    metrics.SIGNATURES.labels("trainer", "signed").inc()
    metrics.SIGN_SECONDS.observe(0.003)
    metrics.REVIEWS.labels("ok").inc()
    metrics.USER_REVIEWS.labels("ok").inc()
    metrics.STORE_SIGNING.labels("headers").set(1)
    for state in ("busy", "idle"):
        metrics.CONNECTIONS.labels(state).set(3)
    metrics.MAX_CONNECTIONS.set(1000)
    metrics.CERTIFICATE_END.set(4e9)
    usage.SECONDS.observe(0.4)
    return metrics.REGISTRY


def _egress() -> CollectorRegistry:
    egress_metrics.MAX_TUNNELS.set(512)
    return egress_metrics.REGISTRY


def _trainer() -> str:
    metrics = TrainerMetrics()
    metrics.set_step("team/first", 0)
    values = {key: 0.1 for key, _ in GAUGES.values()}
    metrics.on_step("team/first", StepResult(step=1, policy=policy(1, RUN_URI), metrics=values, batch_id="one"))
    return metrics.text().decode()


def _environment() -> CollectorRegistry:
    metrics = EnvironmentMetrics()
    metrics.groups.labels("train").inc()
    metrics.rollouts.labels("ok").inc()
    metrics.seconds.observe(2)
    return metrics.registry


def _sidecar() -> CollectorRegistry:
    metrics = SidecarMetrics()
    metrics.loads.labels("ok").inc()
    metrics.seconds.observe(0.3)
    metrics.download_seconds.observe(0.1)
    used = RunUsage(tokens={TokenKind.sampled: 9}, device_seconds=1, refused=1)
    usage = PoolUsage(idle_seconds=2, waiting=3, runs={"uid-1": used})
    metrics.registry.register(PoolUsageCollector(lambda: usage))
    return metrics.registry


def _engine() -> CollectorRegistry:
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    for name in ENGINE_GAUGES:
        Gauge(name, "Of vLLM.", labels, registry=registry).labels("model", "0").set(1)
    for name in ENGINE_COUNTERS:
        ends = ("finished_reason",) if name == "vllm:request_success" else ()
        Counter(name, "Of vLLM.", (*labels, *ends), registry=registry).labels(
            "model", "0", *("stop" for _ in ends)
        ).inc()
    for name in ENGINE_HISTOGRAMS:
        Histogram(name, "Of vLLM.", labels, registry=registry).labels("model", "0").observe(1)
    return registry
