from rlrun.service.backoff import Backoff


def test_failures_that_began_before_the_pause_do_not_count() -> None:
    backoff = Backoff(first=1.0, longest=8.0)
    for _ in range(30):
        backoff.record_failure(now=10.0, started=5.0)
    assert backoff.pause == 1.0
    backoff.record_failure(now=12.0, started=11.0)
    assert backoff.pause == 2.0
    assert not backoff.open(13.9)
    assert backoff.open(14.0)
    for now in range(100, 120):
        backoff.record_failure(float(now), float(now))
    assert backoff.pause == 8.0
    backoff.record_success()
    assert backoff.open(0.0)
