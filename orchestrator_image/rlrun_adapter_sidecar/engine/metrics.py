"""Prometheus metrics of the adapter sidecars."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LOAD_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180)


class SidecarMetrics:
    """Prometheus metrics of a sidecar."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "rlrun_sidecar_load_seconds",
            "Duration of a successful load in seconds, including the download.",
            registry=self.registry,
            buckets=LOAD_BUCKETS,
        )
        self.download_seconds = Histogram(
            "rlrun_sidecar_download_seconds",
            "Duration of a successful download in seconds.",
            registry=self.registry,
            buckets=LOAD_BUCKETS,
        )
        self.loads = Counter(
            "rlrun_sidecar_loads", "Loads by outcome: ok or the problem's reason.", ["outcome"], registry=self.registry
        )
        self.unloads = Counter("rlrun_sidecar_unloads", "Adapters unloaded.", registry=self.registry)
        self.bytes = Counter("rlrun_sidecar_downloaded_bytes", "Bytes downloaded.", registry=self.registry)
        self.adapters = Gauge(
            "rlrun_sidecar_adapters", "Policies in the engine when it was last queried.", registry=self.registry
        )
