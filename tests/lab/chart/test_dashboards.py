"""Every query of the dashboards returns something in a real Prometheus, which scrapes the pages of all processes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.metric_pages import Page, metric_pages
from tests.support.prometheus_queries import ALERTS, DASHBOARDS, load, queries
from tests.support.prometheus_server import Prometheus, Target, prometheus_server

VARIABLES = {"$namespace": ".*", "$run": ".*", "$__rate_interval": "1m", "$__range": "1h"}


@contextmanager
def served(pages: dict[str, Page]) -> Iterator[str]:
    """Serve each page at the path of its name. Yields host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[self.path.strip("/")].text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A server that has scraped each page twice: a rate needs two samples."""
    pages = asyncio.run(metric_pages(tmp_path_factory.mktemp("run")))
    with served(pages) as address:
        targets = [Target(name, address, f"/{name}", page.labels) for name, page in pages.items()]
        with prometheus_server(tmp_path_factory.mktemp("prometheus"), targets) as found:
            yield found


def filled(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@pytest.mark.parametrize("name", [path.stem for path in DASHBOARDS])
def test_every_query_of_a_dashboard_returns_something(prometheus: Prometheus, name: str) -> None:
    found = [(title, filled(expression)) for title, expression in queries(load(name))]
    assert len(found) > 20
    assert [(title, expression) for title, expression in found if not prometheus.count(expression)] == []


def test_a_query_that_returns_nothing_is_found(prometheus: Prometheus) -> None:
    assert prometheus.count(filled('sum(rate(rlrun_s3_calls_total{namespace=~"$namespace"}[$__rate_interval]))'))
    assert not prometheus.count(filled('sum(rate(rlrun_s3_calls_total{name=~"other"}[$__rate_interval]))'))


def test_every_alert_is_evaluated_and_none_fires(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == set(ALERTS)
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule.get("lastError")] == []
    assert prometheus.firing() == set()
