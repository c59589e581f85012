"""A Prometheus server with the chart's alerts, which scrapes processes and pages of a test every second."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from local_cluster.host.paths import paths
from local_cluster.tools.host_packages import program_from_debian
from tests.support.ports import claimed_ports
from tests.support.prometheus_queries import RULES

START_SECONDS = 60.0


@dataclass(frozen=True)
class Target:
    """What a server scrapes."""

    job: str
    address: str
    """Host and port."""
    path: str = "/metrics"
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer."""
        with urlopen(f"{self.url}{path}?{urlencode(parameters)}", timeout=30) as answer:
            return json.loads(answer.read())["data"]

    def count(self, expression: str) -> int:
        """Return the number of series that the expression has now."""
        return len(self.get("/api/v1/query", query=expression)["result"])

    def wait_for(self, expression: str, seconds: float) -> None:
        """Return once the expression has a series."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self.count(expression):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"no series of {expression} within {seconds:.0f} s")

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._alerts() if alert["state"] == "firing"}

    def _alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/alerts")["alerts"]
        return found


@contextmanager
def prometheus_server(folder: Path, targets: Sequence[Target]) -> Iterator[Prometheus]:
    """Start a server with the chart's alerts, and yield it once it has scraped each target twice."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": target.job,
                "metrics_path": target.path,
                "static_configs": [{"targets": [target.address], "labels": target.labels}],
            }
            for target in targets
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    log = folder / "prometheus.log"
    with claimed_ports(1) as (port,), log.open("wb") as out:
        command = [
            program_from_debian(paths().cache, "prometheus", "prometheus"),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
        found = Prometheus(f"http://127.0.0.1:{port}")
        try:
            found.wait_for(f"count(count_over_time(up[5m]) > 1 and up == 1) == {len(targets)}", START_SECONDS)
            yield found
        except AssertionError as error:
            error.add_note(log.read_text()[-4000:])
            raise
        finally:
            process.terminate()
            process.wait(30)
