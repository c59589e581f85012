"""Counters of the operator and of the API server."""

from bench.scale.testbed.readings import ApiServerWork, Reading, count_writes, metric, parse_api_server

METRICS = """
# HELP rlrun_api_requests_total Requests
rlrun_api_requests_total{kind="rlruns",verb="get"} 10.0
rlrun_api_requests_total{kind="rlruns",verb="list"} 3.0
rlrun_api_requests_total{kind="rlmodels",verb="apply"} 1.0
rlrun_api_requests_total{kind="leases",verb="replace"} 4.0
rlrun_api_requests_total_created{verb="list"} 1.7e+09
rlrun_cache_bytes 2.5e+06
"""
API_SERVER = """
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 4
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 1
apiserver_request_total{code="200",resource="pods",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="200",resource="pods",subresource="",verb="WATCH"} 50
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 70
process_cpu_seconds_total 1.5
"""


def test_a_metric_is_summed_over_its_labels() -> None:
    assert metric(METRICS, "rlrun_api_requests_total") == 18
    assert metric(METRICS, "rlrun_cache_bytes") == 2.5e6
    assert metric(METRICS, "rlrun_unknown") == 0


def test_work_is_what_came_between_two_readings() -> None:
    before = Reading(10.0, 100, 10, 1, 50, 2.0, written={"apply rlmodels": 1, "create events": 2})
    written = {"apply rlmodels": 3, "create events": 2, "delete secrets": 1}
    found = Reading(15.0, 130, 12, 1, 51, 2.5, written=written).since(before)
    assert found == Reading(5.0, 30, 2, 0, 1, 0.5, written={"apply rlmodels": 2, "delete secrets": 1})


def test_writes_are_told_apart_by_verb_and_kind_without_renewals_of_the_lease() -> None:
    assert count_writes(METRICS) == {"apply rlmodels": 1}


def test_the_api_servers_requests_count_without_watches_and_leases() -> None:
    found = parse_api_server(API_SERVER)
    assert found == ApiServerWork(8, 1.5)
    assert found.since(ApiServerWork(2, 1.0)) == ApiServerWork(6, 0.5)
