"""A real Prometheus on a cluster that enforces NetworkPolicies: what it scrapes, and what the dashboards show of it.

Two Prometheus run as pods with the configuration that the chart's monitors imply. One is in the namespace that the
chart's policies admit, the other is not. The run of the demo trains, and an adapter of a run of stubs is deployed.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from demo.install import SYSTEM_NAMESPACE
from demo.kubectl import Kubectl, Object, WaitedTooLong, wait_for
from demo.watch import follow
from tests.e2e.conftest import ENGINES, SECONDS, Platform
from tests.e2e.server_clients import api_key, server_on_loopback
from tests.monitoring.prometheus_pods import (
    ADMITTED,
    STRANGER,
    configuration,
    prometheus_image,
    prometheus_pod,
)
from tests.support.prometheus_queries import LABEL_VALUES, all_expressions, metric_names, queries
from tests.support.prometheus_server import Prometheus

TARGETS = {
    ("rlrun-metrics", "metrics"),
    ("rlrun-server-metrics", "metrics"),
    ("rlrun-egress-metrics", "metrics"),
    ("orchestrator", "status"),
    ("trainer", "http"),
    ("environment", "http"),
    ("inference", "openai"),
    ("inference", "sidecar"),
    ("serving", "openai"),
    ("serving", "sidecar"),
}
"""Services of the chart, roles of runs and serving pools, each with its port."""
EMPTY_IN_A_HEALTHY_RUN: Mapping[str, str] = {}
"""Queries that return nothing unless something fails, each with the reason."""
GRAFANA = {"$__rate_interval": "1m", "$__range": "1h"}
"""Variables that every dashboard has."""
SETTLE_SECONDS = 180.0
ENDINGS = re.compile(r"_(total|bucket|count|sum)$")
"""Ends of the names of samples that the name of their metric has or lacks, depending on the format of the page."""


@dataclass(frozen=True)
class Monitored:
    """A cluster with runs and two Prometheus."""

    kubectl: Kubectl
    admitted: Prometheus
    stranger: Prometheus
    chat: Callable[[], None]
    """Asks the deployed adapter."""


@pytest.fixture(scope="module")
def monitored(platform: Platform, module_namespace: Callable[[str], str]) -> Iterator[Monitored]:
    kubectl, namespace = platform.kubectl, module_namespace("monitored")
    image, files = prometheus_image(), configuration(platform.kubectl)
    maker = {"maxSteps": 2, "checkpoints": None, "adapters": {"interval": 1, "keepLast": 1}}
    kubectl.apply(platform.run_object("maker", namespace, **maker))
    with (
        prometheus_pod(kubectl, ADMITTED, image, files) as admitted,
        prometheus_pod(kubectl, STRANGER, image, files) as stranger,
    ):
        follow(kubectl, "maker", namespace, SECONDS)
        kubectl.apply(platform.run_object("reverse-text", namespace, model=ENGINES, maxSteps=100_000))
        deployed = deployed_adapter(kubectl, namespace)
        wait_for("a step of the run", lambda: step_of(kubectl, "reverse-text", namespace), SECONDS)
        with client_of(kubectl, namespace, deployed["deploymentModel"]) as chat:
            yield Monitored(kubectl, admitted, stranger, chat)


def deployed_adapter(kubectl: Kubectl, namespace: str) -> Object:
    """Deploy the newest adapter and return its status."""
    newest = max(kubectl.list("rladapters", namespace), key=lambda o: o["spec"]["step"])["metadata"]["name"]
    patch = json.dumps({"spec": {"deployed": True}})
    kubectl("patch", "rladapter", newest, "-n", namespace, "--type", "merge", "-p", patch)

    def status() -> Object | None:
        found: Object = (kubectl.get("rladapter", newest, namespace) or {}).get("status") or {}
        return found if found.get("deploymentState") == "Deployed" else None

    return wait_for("the deployed adapter", status, SECONDS)


def step_of(kubectl: Kubectl, name: str, namespace: str) -> int:
    """Return the steps that a run has done. Fails if it has failed."""
    status = (kubectl.get("rlrun", name, namespace) or {}).get("status", {})
    assert status.get("phase") != "Failed", status
    return int((status.get("progress") or {}).get("step") or 0)


@contextmanager
def client_of(kubectl: Kubectl, namespace: str, model: str) -> Iterator[Callable[[], None]]:
    """Yield what asks a deployed model over rlrun-server, as users outside of the cluster do."""
    key, message = api_key(kubectl, namespace), {"role": "user", "content": "abc"}
    with server_on_loopback(kubectl) as url:
        client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=60, max_retries=3)
        yield lambda: client.chat.completions.create(model=model, messages=[message], max_tokens=8)


def targets(prometheus: Prometheus) -> dict[tuple[str, str], list[Any]]:
    """Return the targets by what they are and their port."""
    found: dict[tuple[str, str], list[Any]] = {}
    for target in prometheus.get("/api/v1/targets", state="active")["activeTargets"]:
        labels = target["labels"]
        serving = "serving" if "rlrun_dev_serving" in labels else None
        what = labels.get("rlrun_dev_role") or serving or labels.get("service", labels["job"])
        found.setdefault((what, labels["endpoint"]), []).append(target)
    return found


def health(prometheus: Prometheus) -> dict[tuple[str, str], set[str]]:
    """Return what Prometheus says of the targets. Those not scraped yet are `unknown`."""
    return {key: {target["health"] for target in found} for key, found in targets(prometheus).items()}


def settled(prometheus: Prometheus, expected: str) -> dict[tuple[str, str], set[str]]:
    """Return the health of all targets, once it is that of TARGETS or the time is over."""
    wanted = {key: {expected} for key in TARGETS}
    try:
        wait_for("the targets", lambda: health(prometheus) == wanted, SETTLE_SECONDS)
    except WaitedTooLong:
        for found in targets(prometheus).values():
            for target in found:
                print(target["scrapeUrl"], target["labels"], target["health"], target["lastError"])
    return health(prometheus)


def filled(expression: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        expression = expression.replace(name, value)
    return expression


def chosen(prometheus: Prometheus, dashboard: Any) -> dict[str, str]:
    """Return the variables of a dashboard as Grafana fills them in if all of their values are chosen, one by one."""
    variables = dict(GRAFANA)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert found is not None, variable["query"]
            series = {"match[]": filled(found["series"], variables)}
            variables[f"${variable['name']}"] = "|".join(
                prometheus.get(f"/api/v1/label/{found['label']}/values", **series)
            )
    return variables


def shown(prometheus: Prometheus, expression: str) -> bool:
    """Whether a query returns a number now: a panel shows nothing of NaN."""
    found = prometheus.get("/api/v1/query", query=expression)["result"]
    return any(series["value"][1] != "NaN" for series in found)


def dashboards(kubectl: Kubectl) -> dict[str, Any]:
    """Return the dashboards as Grafana's sidecar finds them, by the names of their files."""
    where = ("-n", SYSTEM_NAMESPACE, "-l", "grafana_dashboard=1", "-o", "json")
    maps = json.loads(kubectl("get", "configmaps", *where))["items"]
    assert len(maps) == 3
    return {name: json.loads(text) for found in maps for name, text in found["data"].items()}


def test_prometheus_scrapes_all_that_has_metrics(monitored: Monitored) -> None:
    assert settled(monitored.admitted, "up") == {key: {"up"} for key in TARGETS}


def test_from_another_namespace_the_policies_refuse_every_scrape(monitored: Monitored) -> None:
    assert settled(monitored.stranger, "down") == {key: {"down"} for key in TARGETS}
    errors = {target["lastError"] for found in targets(monitored.stranger).values() for target in found}
    assert [error for error in errors if "HTTP status" in error] == [], "it reached the process"


def test_every_query_of_the_dashboards_shows_something(monitored: Monitored) -> None:
    """Also for one namespace and run, as `.*` would hide a series without these labels."""
    found = dashboards(monitored.kubectl)
    waiting = {
        f"{name}: {title} ({number})": (name, expression)
        for name, dashboard in found.items()
        for number, (title, expression) in enumerate(queries(dashboard))
    }
    assert len(waiting) > 80

    def all_shown() -> bool:
        monitored.chat()
        variables = {name: chosen(monitored.admitted, dashboard) for name, dashboard in found.items()}
        for place, (name, expression) in list(waiting.items()):
            if shown(monitored.admitted, filled(expression, variables[name])):
                del waiting[place]
        return waiting.keys() <= EMPTY_IN_A_HEALTHY_RUN.keys()

    try:
        wait_for("all queries", all_shown, SETTLE_SECONDS, every=5.0)
    except WaitedTooLong:
        print(json.dumps(waiting, indent=1))
    assert waiting.keys() == EMPTY_IN_A_HEALTHY_RUN.keys()


def test_every_metric_of_dashboards_and_alerts_is_exported(monitored: Monitored) -> None:
    """Also those of queries that return zero without a series."""
    pages = monitored.admitted.get("/api/v1/targets/metadata")
    exported = {ENDINGS.sub("", entry["metric"]) for entry in pages}
    used = {name for expression in all_expressions().values() for name in metric_names(expression)}
    assert len(used) > 60
    assert {name for name in used if ENDINGS.sub("", name) not in exported} == set()


def test_no_alert_is_pending_in_a_healthy_run(monitored: Monitored) -> None:
    def rules() -> list[Any]:
        groups = monitored.admitted.get("/api/v1/rules")["groups"]
        return [(rule["name"], rule["state"], rule.get("lastError")) for group in groups for rule in group["rules"]]

    def quiet() -> bool:
        return all(state == "inactive" for _, state, _ in rules())

    with suppress(WaitedTooLong):
        wait_for("alerts without a fault to end", quiet, SETTLE_SECONDS)
    found = rules()
    assert len(found) > 10
    assert [rule for rule in found if rule[1] != "inactive" or rule[2]] == []
