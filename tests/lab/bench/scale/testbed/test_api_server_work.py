"""Work of the API server, from its metrics."""

from bench.scale.testbed.api_server_work import ApiServerWork, parse_work


def metrics(pods: int, cpu: float) -> str:
    def sample(verb: str, resource: str, subresource: str, code: int, value: int) -> str:
        labels = f'code="{code}",component="apiserver",resource="{resource}",subresource="{subresource}",verb="{verb}"'
        return f"apiserver_request_total{{{labels}}} {value}\n"

    return (
        "# TYPE apiserver_request_total counter\n"
        + sample("POST", "pods", "", 201, pods)
        + sample("POST", "pods", "", 409, 1)
        + sample("PATCH", "pods", "status", 200, 3)
        + sample("WATCH", "pods", "", 200, 50)
        + sample("PUT", "leases", "", 200, 70)
        + f"process_cpu_seconds_total {cpu}\n"
    )


def test_requests_count_by_operation_without_watches_and_leases() -> None:
    found = parse_work(metrics(pods=4, cpu=1.5))
    assert found == ApiServerWork(1.5, {"POST pods": 5, "PATCH pods/status": 3})
    assert found.count == 8


def test_only_what_was_done_since_the_earlier_reading_counts() -> None:
    before, after = parse_work(metrics(pods=4, cpu=1.5)), parse_work(metrics(pods=10, cpu=2.0))
    assert after.since(before) == ApiServerWork(0.5, {"POST pods": 6})
