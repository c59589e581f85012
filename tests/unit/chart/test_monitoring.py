"""Alerts and dashboards of the chart: their metrics exist, their runbooks too, and values reach them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_wire import DASHBOARD_METRICS
from tests.support.metric_pages import Page, metric_pages, names
from tests.support.prometheus_queries import (
    ALERTS,
    DASHBOARDS,
    GROUPS,
    all_expressions,
    load,
    metric_names,
    panels,
    queries,
)
from tests.support.source_tree import ROOT
from tests.unit.chart.conftest import CHART, LOCAL, Helm, Object, Render

RUNBOOKS = (ROOT / "docs" / "alerts.md").read_text()
ALERTS_ON: Object = {"metrics": {"alerts": {"enabled": True}}}
BUILT_IN = {"timeseries", "stat", "bargauge", "heatmap"}
"""Types of panels that every Grafana has."""


def unknown_names(expressions: dict[str, str], pages: dict[str, Page]) -> dict[str, set[str]]:
    """Return the names that no process exposes, by expression."""
    known = names(pages.values())
    found = {place: metric_names(expression) - known for place, expression in expressions.items()}
    return {place: unknown for place, unknown in found.items() if unknown}


@pytest.mark.slow
async def test_every_metric_of_alerts_and_dashboards_exists(tmp_path: Path) -> None:
    pages = await metric_pages(tmp_path)
    expressions = all_expressions()
    assert unknown_names(expressions, pages) == {}
    used = {name for expression in expressions.values() for name in metric_names(expression)}
    assert {name for name in used if name.startswith("vllm:")} == DASHBOARD_METRICS
    assert unknown_names({"planted": "sum(rate(rlrun_reconcile_failures_total[5m]))"}, pages) == {
        "planted": {"rlrun_reconcile_failures_total"}
    }
    assert unknown_names({"planted": "vllm:gpu_cache_usage_perc > 0.9"}, pages) == {
        "planted": {"vllm:gpu_cache_usage_perc"}
    }


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('sum by (reason, cause) (increase(a_total{b=~"c|d",e="f"}[1h])) > 0', {"a_total"}),
        ("a / ignoring (state) group_left (x) b", {"a", "b"}),
        ('histogram_quantile(0.99, sum by (le) (rate(vllm:a_bucket{n=~"$n"}[$__rate_interval])))', {"vllm:a_bucket"}),
        ('label_replace(max(a), "component", "rlrun-server", "", "") or vector(0)', {"a"}),
        ("(a < b) and changes(c[5m]) == 0 unless d > 900", {"a", "b", "c", "d"}),
        ("min((a > 0) - time()) < 30 * 86400", {"a"}),
        ("absent(a == 1)", {"a"}),
    ],
)
def test_names_of_metrics_are_found(expression: str, expected: set[str]) -> None:
    assert metric_names(expression) == expected


def test_every_expression_names_a_metric() -> None:
    assert [place for place, expression in all_expressions().items() if not metric_names(expression)] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_happened_and_has_a_runbook(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert "{{" not in rule["annotations"]["description"]
    section = RUNBOOKS.partition(f"\n### {alert}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    assert [part for part in ("**Means**", "**Look at**", "**Do**") if part not in section] == []


def test_every_runbook_has_its_alert() -> None:
    found = [line.removeprefix("### ") for line in RUNBOOKS.splitlines() if line.startswith("### Rlrun")]
    assert found == list(ALERTS)


def test_alerts_and_dashboards_are_off_by_default(render: Render) -> None:
    rendered = render()
    assert rendered.of("PrometheusRule") == []
    assert [o for o in rendered.of("ConfigMap") if "grafana_dashboard" in o["metadata"]["labels"]] == []


def test_lint(helm: Helm, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"metrics": {"alerts": {"enabled": True}, "dashboards": {"enabled": True}}}))
    done = helm("lint", "--strict", CHART, "-f", LOCAL, "-f", values)
    assert done.returncode == 0, done.stdout


def test_alerts_are_those_of_the_file_with_their_runbook(render: Render) -> None:
    rule = render(ALERTS_ON).one("PrometheusRule", "rlrun")
    expected = [
        {
            "name": group["name"],
            "rules": [
                {
                    **alert,
                    "annotations": {**alert["annotations"], "runbook": f"docs/alerts.md#{alert['alert'].lower()}"},
                }
                for alert in group["rules"]
            ],
        }
        for group in GROUPS
    ]
    assert rule["spec"]["groups"] == expected
    assert rule["metadata"]["namespace"] == "rlrun-system"


def test_values_change_single_alerts(render: Render) -> None:
    values = {
        "enabled": True,
        "namespace": "monitoring",
        "labels": {"release": "prometheus"},
        "alertLabels": {"team": "ml"},
        "runbookUrl": "https://wiki.example.com/rlrun",
        "rules": {
            "RlrunRunStalled": {"for": "2h", "labels": {"severity": "critical"}},
            "RlrunReconcilesLate": {"expr": "rlrun_queue_depth > 5"},
            "RlrunServerDown": {"enabled": False},
        },
    }
    rule = render({"metrics": {"alerts": values}}).one("PrometheusRule")
    assert rule["metadata"]["namespace"] == "monitoring"
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    alerts = {alert["alert"]: alert for group in rule["spec"]["groups"] for alert in group["rules"]}
    assert set(ALERTS) - set(alerts) == {"RlrunServerDown"}
    stalled, late = alerts["RlrunRunStalled"], alerts["RlrunReconcilesLate"]
    assert stalled["for"] == "2h"
    assert stalled["labels"] == {"severity": "critical", "team": "ml"}
    assert stalled["expr"] == ALERTS["RlrunRunStalled"]["expr"]
    assert stalled["annotations"]["runbook_url"] == "https://wiki.example.com/rlrun#rlrunrunstalled"
    assert late["expr"] == "rlrun_queue_depth > 5"
    assert late["labels"] == {"severity": "warning", "team": "ml"}


def test_a_change_of_an_unknown_alert_is_refused(template: Helm) -> None:
    done = template({"metrics": {"alerts": {"enabled": True, "rules": {"RlrunRunsStalled": {"for": "2h"}}}}})
    assert done.returncode != 0
    assert "metrics.alerts.rules.RlrunRunsStalled: there is no such alert; choose among Rlrun" in done.stderr


@pytest.mark.parametrize(
    ("rule", "field"),
    [({"for": "soon"}, "for"), ({"expression": "1"}, "expression"), ({"labels": {"severity": 1}}, "severity")],
)
def test_a_wrong_change_is_refused_by_name(template: Helm, rule: Object, field: str) -> None:
    done = template({"metrics": {"alerts": {"rules": {"RlrunRunStalled": rule}}}})
    assert done.returncode != 0
    assert field in done.stderr


def test_dashboards_reach_grafana_unchanged(render: Render) -> None:
    values = {"enabled": True, "namespace": "monitoring", "annotations": {"grafana_folder": "RL"}}
    maps = [
        o
        for o in render({"metrics": {"dashboards": values}}).of("ConfigMap")
        if o["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    assert [o["metadata"]["name"] for o in maps] == [f"rlrun-dashboard-{path.stem}" for path in DASHBOARDS]
    assert len(maps) == 3
    for path, found in zip(DASHBOARDS, maps, strict=True):
        assert found["metadata"]["namespace"] == "monitoring"
        assert found["metadata"]["annotations"] == {"grafana_folder": "RL"}
        assert json.loads(found["data"][f"rlrun-{path.name}"]) == json.loads(path.read_text())


@pytest.mark.parametrize("name", [path.stem for path in DASHBOARDS])
def test_a_dashboard_needs_no_plugin_and_no_data_source_of_its_own(name: str) -> None:
    dashboard = load(name)
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert "namespace" in variables
    assert dashboard["uid"] == f"rlrun-{name}"
    shown: list[dict[str, Any]] = panels(dashboard)
    assert {panel["type"] for panel in shown} <= BUILT_IN
    sources = [part["datasource"] for panel in shown for part in (panel, *panel["targets"])]
    assert [source for source in sources if source != {"type": "prometheus", "uid": "${datasource}"}] == []
    used = {word for _, expression in queries(dashboard) for word in ("$namespace", "$run") if word in expression}
    assert used == {f"${variable}" for variable in variables if variable != "datasource"}


@pytest.mark.parametrize("name", [path.stem for path in DASHBOARDS])
def test_panels_of_a_dashboard_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in load(name)["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
