"""Prometheus metrics of the egress proxy."""

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry()

OPEN_TUNNELS = Gauge("rlrun_egress_open_tunnels", "Connections that are open.", registry=REGISTRY)
MAX_TUNNELS = Gauge("rlrun_egress_tunnels_limit", "Connections that may be open at a time.", registry=REGISTRY)
TUNNELS = Counter("rlrun_egress_tunnels_total", "Connections that have ended.", ["namespace"], registry=REGISTRY)
BYTES = Counter(
    "rlrun_egress_bytes_total",
    "Bytes of connections that have ended, both directions.",
    ["namespace"],
    registry=REGISTRY,
)
REFUSALS = Counter("rlrun_egress_refusals_total", "Connections that were refused.", ["reason"], registry=REGISTRY)
