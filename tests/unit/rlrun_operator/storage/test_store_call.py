"""How long a caller waits for S3, and what the thread of its call may still send."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from rlrun.storage.store import Unreachable
from rlrun_operator.runtime.leader_election import LeaseLost
from rlrun_operator.storage.store_call import CallEnded, CallLimits, CurrentCall, StoreCall, StoreTimeout

ENDPOINT = "http://s3.test"


class Bench:
    """A call with a clock that the test moves, and a Lease that it takes away."""

    def __init__(self) -> None:
        self.now = 50.0
        self.is_leader = True
        self.call = StoreCall(lambda: self.is_leader, silence_seconds=4.0, total_seconds=20.0, clock=lambda: self.now)

    def error(self) -> Unreachable:
        assert self.call.seconds_left <= 0
        return self.call.timeout(ENDPOINT)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_silence_ends_a_call(bench: Bench) -> None:
    bench.call.begin()
    bench.now += 3.5
    assert bench.call.seconds_left == 0.5
    bench.now += 0.5
    error = bench.error()
    assert not isinstance(error, StoreTimeout)
    assert error.problem.reason == "S3Unreachable"
    assert ENDPOINT in str(error)
    assert "4 s" in str(error)


def test_each_response_begins_the_silence_anew(bench: Bench) -> None:
    bench.call.begin()
    for _ in range(3):
        bench.now += 3.0
        bench.call.after_response()
    assert bench.call.seconds_left == 4.0
    bench.now += 4.0
    assert not isinstance(bench.error(), StoreTimeout)


def test_pieces_of_an_object_are_answers_and_their_end_is_no_outage(bench: Bench) -> None:
    bench.call.begin()
    bench.call.after_response()
    for _ in range(3):
        bench.now += 3.0
        bench.call.on_data()
    assert bench.call.seconds_left == 4.0
    bench.now += 4.0
    assert isinstance(bench.error(), StoreTimeout)
    bench.call.before_request("GET")
    assert not isinstance(bench.error(), StoreTimeout)


def test_a_body_is_not_read_for_a_caller_that_has_gone(bench: Bench) -> None:
    bench.call.begin()
    bench.call.end()
    with pytest.raises(CallEnded):
        bench.call.on_data()


def test_a_call_that_s3_answers_ends_after_its_total_time(bench: Bench) -> None:
    bench.call.begin()
    for _ in range(20):
        bench.now += 1.0
        bench.call.after_response()
    error = bench.error()
    assert isinstance(error, StoreTimeout)
    assert "20 s" in str(error)
    assert bench.call.is_answered


def test_a_call_without_a_thread_says_nothing_about_s3(bench: Bench) -> None:
    bench.now += 4.0
    error = bench.error()
    assert isinstance(error, StoreTimeout)
    assert "s3Threads" in str(error)
    assert not bench.call.is_answered


def test_the_time_until_the_first_request_is_no_silence(bench: Bench) -> None:
    bench.now += 3.0
    bench.call.begin()
    assert bench.call.seconds_left == 4.0


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
def test_a_call_whose_caller_has_gone_sends_nothing(bench: Bench, method: str) -> None:
    bench.call.begin()
    bench.call.before_request(method)
    bench.call.end()
    with pytest.raises(CallEnded):
        bench.call.before_request(method)


def test_a_call_whose_caller_has_gone_before_does_not_begin(bench: Bench) -> None:
    bench.call.end()
    with pytest.raises(CallEnded):
        bench.call.begin()


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_nothing_is_changed_without_the_lease(bench: Bench, method: str) -> None:
    bench.call.begin()
    bench.call.before_request(method)
    bench.is_leader = False
    with pytest.raises(LeaseLost):
        bench.call.before_request(method)


def test_without_the_lease_s3_may_be_read(bench: Bench) -> None:
    bench.is_leader = False
    bench.call.before_request("GET")
    bench.call.before_request("HEAD")


def test_a_large_upload_may_take_longer() -> None:
    limits = CallLimits(silence_seconds=4.0, upload_bytes_per_second=1000.0)
    assert limits.silence_of_upload(0) == 4.0
    assert limits.silence_of_upload(5000) == 9.0


def test_threads_do_not_share_their_call(bench: Bench) -> None:
    current = CurrentCall()
    current.call = bench.call
    bench.call.end()
    with ThreadPoolExecutor(1) as other:
        other.submit(current.before_request, "GET").result()
    with pytest.raises(CallEnded):
        current.before_request("GET")
