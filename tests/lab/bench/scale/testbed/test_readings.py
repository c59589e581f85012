"""Differences of an operator's counters."""

from dataclasses import asdict, replace

from bench.scale.testbed.readings import Reading, count_writes, metric, usage

METRICS = """
# HELP rlrun_api_requests_total Requests
rlrun_api_requests_total{kind="rlruns",verb="get"} 10.0
rlrun_api_requests_total{kind="rlruns",verb="list"} 3.0
rlrun_api_requests_total{kind="pods",verb="list"} 2.0
rlrun_api_requests_total{kind="rlmodels",verb="apply"} 1.0
rlrun_api_requests_total{kind="leases",verb="replace"} 4.0
rlrun_api_requests_total_created{verb="list"} 1.7e+09
rlrun_cache_bytes 2.5e+06
"""


def test_a_metric_is_summed_over_its_labels_or_of_one_verb() -> None:
    assert metric(METRICS, "rlrun_api_requests_total") == 20
    assert metric(METRICS, "rlrun_api_requests_total", "list") == 5
    assert metric(METRICS, "rlrun_api_requests_total", "patch") == 0
    assert metric(METRICS, "rlrun_cache_bytes") == 2.5e6
    assert metric(METRICS, "rlrun_unknown") == 0


def test_usage_is_what_came_between_two_readings() -> None:
    before = Reading(10.0, 100, 10, 1, 50, 2.0, 1e8, 1e5, 0)
    after = replace(before, at=15.0, requests=130, writes=12, looks=51, cpu_seconds=2.5)
    found = usage(before, after)
    assert (found.seconds, found.requests, found.writes, found.listings) == (5.0, 30, 2, 0)
    assert (found.looks, found.cpu_seconds) == (1, 0.5)


def test_writes_are_told_apart_by_verb_and_kind_without_renewals_of_the_lease() -> None:
    assert count_writes(METRICS) == {"apply rlmodels": 1}
    before = Reading(10.0, 100, 10, 1, 50, 2.0, 1e8, 1e5, 0, {"apply rlmodels": 1, "create events": 2})
    after = replace(before, written={"apply rlmodels": 3, "create events": 2, "delete secrets": 1})
    found = usage(before, after)
    assert found.written == {"apply rlmodels": 2, "delete secrets": 1}
    assert asdict(found)["written"] == found.written, "as it is kept"
