"""Chart values of the queue of runs."""

from typing import Any

import pytest
from rlrun_operator.config.settings import parse_settings

from tests.unit.chart.conftest import Render
from tests.unit.chart.test_render import MINIMAL

CLASSES = {"apiGroups": ["scheduling.k8s.io"], "resources": ["priorityclasses"], "verbs": ["get"]}


def rules(render: Render, **values: Any) -> list[Any]:
    rendered = render({**MINIMAL, **values}, base=None)
    (role,) = [o for o in rendered.of("ClusterRole") if o["metadata"]["name"] == "rlrun-operator"]
    return list(role["rules"])


def test_without_values_there_is_no_queue(render: Render) -> None:
    assert not parse_settings(render(MINIMAL, base=None).settings).queue.is_limited


def test_the_operator_reads_what_the_chart_writes(render: Render) -> None:
    values = {
        "maxRuns": 100,
        "maxRunsPerNamespace": 10,
        "namespaces": {"team-a": {"maxRuns": 0}, "team-b": {"weight": 3, "capacity": {"nvidia.com/gpu": 8}}},
        "capacity": {"nvidia.com/gpu": 1000000, "memory": "4Ti"},
        "backfillSeconds": 604800,
    }
    queue = parse_settings(render({**MINIMAL, "queue": values}, base=None).settings).queue
    assert (queue.max_runs, queue.max_runs_per_namespace, queue.backfill_seconds) == (100, 10, 604800)
    assert queue.capacity == {"nvidia.com/gpu": "1000000", "memory": "4Ti"}
    assert queue.namespaces["team-b"].capacity == {"nvidia.com/gpu": "8"}
    assert (queue.namespaces["team-a"].max_runs, queue.namespaces["team-b"].weight) == (0, 3)


def test_priority_classes_may_be_read_only_if_the_queue_needs_their_values(render: Render) -> None:
    classes = {"runs": {"priorityClasses": ["urgent"]}}
    assert CLASSES in rules(render, queue={"maxRuns": 1}, **classes)
    assert CLASSES not in rules(render, **classes)
    assert CLASSES not in rules(render, queue={"maxRuns": 1})


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"maxRuns": 0}, "maxRuns"),
        ({"maxRuns": 2.5}, "maxRuns"),
        ({"capacity": {"cpu": "lots"}}, "cpu"),
        ({"namespaces": {"a": {"weight": 0}}}, "weight"),
        ({"namespaces": {"a": {"capacity": {"cpu": 0}}}}, "namespaces/a/capacity/cpu"),
        ({"backfillSeconds": -1}, "backfillSeconds"),
        ({"maxRun": 1}, "maxRun"),
    ],
)
def test_wrong_values_are_refused_by_name(render: Render, values: dict[str, Any], field: str) -> None:
    with pytest.raises(AssertionError, match=field):
        render({**MINIMAL, "queue": values}, base=None)
