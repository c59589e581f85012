"""Expressions of the chart's alerts and dashboards, and the names of metrics in them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.source_tree import ROOT

MONITORING = ROOT / "charts" / "rlrun" / "files" / "monitoring"
RULES = MONITORING / "alerts.yaml"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
LABEL_VALUES = re.compile(r"label_values\((?:(?P<series>.+), )?(?P<label>\w+)\)")
STRINGS = re.compile(r'"[^"]*"')
LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|ignoring|without|group_left)\s*\([^)]*\)|\[[^\]]*\]")
NAME = re.compile(r"(?<![\w$:.])[a-z_][\w:]*(?!\s*\(|[\w:])", re.IGNORECASE)
WORDS = frozenset({"and", "or", "unless", "bool", "offset", "by", "on", "ignoring", "group_left"})


def metric_names(expression: str) -> set[str]:
    """Return the names of the metrics in an expression."""
    bare = LABELS.sub(" ", STRINGS.sub('""', expression))
    return {name for name in NAME.findall(bare) if name not in WORDS}


def load(dashboard: str) -> dict[str, Any]:
    """Return a dashboard by the name of its file."""
    content: dict[str, Any] = json.loads((MONITORING / "dashboards" / f"{dashboard}.json").read_text())
    return content


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard without its rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title and expression of each query of a dashboard, those of its variables included."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        found = LABEL_VALUES.fullmatch(variable["query"]["query"]) if variable["type"] == "query" else None
        if found is not None:
            yield f"${variable['name']}", found["series"]


def all_expressions() -> dict[str, str]:
    """Return the expressions of all alerts and dashboards by where they are."""
    found = {f"alert {name}": rule["expr"] for name, rule in ALERTS.items()}
    for path in DASHBOARDS:
        for number, (title, expression) in enumerate(queries(load(path.stem))):
            found[f"{path.name}: {title} ({number})"] = expression
    return found
