"""Counters of the operator's process and of the API server."""

import re
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes import client

from bench.scale.testbed.cluster import OperatorProcess

TICKS = 100
PAGE_BYTES = 4096
WRITES = ("create", "apply", "patch", "delete")
"""Verbs of requests that change something. `replace` renews the Lease and is counted separately."""
REQUESTS = (*WRITES, "replace", "dry_run", "get", "list")
OTHER_WORK = ("leases", "nodes")
"""Resources whose requests are not counted, because their number depends on time and not on the runs."""


@dataclass(frozen=True)
class Reading:
    """Counters since the start of the operator's process, or their differences between two readings."""

    at: float
    """Time of the reading in seconds of time.monotonic(), or the seconds between two readings."""
    requests: float = 0
    writes: float = 0
    """Number of requests that change something, without renewals of the Lease."""
    listings: float = 0
    """Number of requests to S3 that list objects."""
    looks: float = 0
    cpu_seconds: float = 0
    resident_bytes: float = 0
    cache_bytes: float = 0
    waiting: float = 0
    """Number of runs that wait for a worker."""
    written: Mapping[str, float] = field(default_factory=dict)
    """Number of writes by verb and kind, such as "apply rlmodels"."""

    @classmethod
    def begin(cls, at: float) -> "Reading":
        """Return the counters of a process at its start."""
        return cls(at)

    def since(self, before: "Reading") -> "Reading":
        """Return the differences."""
        numbers = ("at", "requests", "writes", "listings", "looks", "cpu_seconds")
        written = {name: count - before.written.get(name, 0) for name, count in self.written.items()}
        return Reading(
            **{name: getattr(self, name) - getattr(before, name) for name in numbers},
            written={name: count for name, count in written.items() if count},
        )

    def rates(self, prefix: str) -> dict[str, float]:
        """Return the figures of a period: requests, reconciliations and CPU seconds per second, and the total numbers
        of writes and S3 listings.
        """
        rates = {f"{prefix}_{name}": getattr(self, name) / self.at for name in ("requests", "looks", "cpu_seconds")}
        return rates | {f"{prefix}_writes": self.writes, f"{prefix}_listings": self.listings}

    def per_run(self, runs: int) -> dict[str, float]:
        """Return the figures of a burst of `runs` runs: requests, reconciliations and CPU milliseconds per run."""
        return {
            "requests_of_a_run": self.requests / runs,
            "looks_of_a_run": self.looks / runs,
            "cpu_ms_of_a_run": 1000 * self.cpu_seconds / runs,
        }


@dataclass(frozen=True)
class ApiServerWork:
    """Number of requests of all clients, excluding watches and OTHER_WORK, and CPU seconds."""

    requests: float
    cpu_seconds: float

    def since(self, before: "ApiServerWork") -> "ApiServerWork":
        """Return the differences."""
        return ApiServerWork(self.requests - before.requests, self.cpu_seconds - before.cpu_seconds)


def read(operator: OperatorProcess) -> Reading:
    """Return the operator's counters."""
    text = operator.metrics()
    stat = (Path("/proc") / str(operator.pid) / "stat").read_text().rpartition(")")[2].split()
    written = count_writes(text)
    requests = samples(text, "rlrun_api_requests_total")
    return Reading(
        at=time.monotonic(),
        requests=sum(value for labels, value in requests if labels["verb"] in REQUESTS),
        writes=sum(written.values()),
        listings=metric(text, "rlrun_s3_listings_total"),
        looks=metric(text, "rlrun_reconcile_duration_seconds_count"),
        # Fields 14, 15 and 24 of proc_pid_stat(5): utime, stime and rss.
        cpu_seconds=(int(stat[11]) + int(stat[12])) / TICKS,
        resident_bytes=int(stat[21]) * PAGE_BYTES,
        cache_bytes=metric(text, "rlrun_cache_bytes"),
        waiting=metric(text, "rlrun_queue_depth"),
        written=written,
    )


def read_api_server(api: client.ApiClient) -> ApiServerWork:
    """Return the work since the start of the API server."""
    response = api.call_api(
        "/metrics", "GET", auth_settings=["BearerToken"], _preload_content=False, _return_http_data_only=True
    )
    return parse_api_server(response.data.decode())


def parse_api_server(text: str) -> ApiServerWork:
    """Parse the API server's work from its metrics in Prometheus' text format."""
    requests = sum(
        value
        for labels, value in samples(text, "apiserver_request_total")
        if labels["verb"] != "WATCH" and labels["resource"] not in OTHER_WORK
    )
    return ApiServerWork(requests, metric(text, "process_cpu_seconds_total"))


def count_writes(text: str) -> dict[str, float]:
    """Parse the writes by verb and kind from metrics in Prometheus' text format."""
    found: defaultdict[str, float] = defaultdict(float)
    for labels, value in samples(text, "rlrun_api_requests_total"):
        if labels["verb"] in WRITES:
            found[f"{labels['verb']} {labels['kind']}"] += value
    return dict(found)


def metric(text: str, name: str) -> float:
    """Return the sum of a metric over all labels, or 0 if it is missing."""
    return sum(value for _, value in samples(text, name))


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Parse labels and values of a metric in Prometheus' text format."""
    found = re.findall(rf"^{name}(?:\{{([^}}]*)\}})? (\S+)$", text, re.M)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]
