"""Metrics of rlrun-tinker."""

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()
REQUESTS = Counter(
    "rlrun_tinker_requests_total", "Requests of clients, by route and HTTP status. 408 means that a result is not "
    "complete yet.",
    ["route", "status"], registry=REGISTRY,
)  # fmt: skip
CONNECTIONS = Gauge("rlrun_tinker_connections", "Open connections.", registry=REGISTRY)
MAX_CONNECTIONS = Gauge("rlrun_tinker_connections_limit", "Maximum number of open connections.", registry=REGISTRY)
BODIES = Gauge("rlrun_tinker_body_bytes", "Bytes of request bodies in memory.", registry=REGISTRY)
SAMPLES = Gauge("rlrun_tinker_sample_requests", "Requests for samples in progress.", registry=REGISTRY)
