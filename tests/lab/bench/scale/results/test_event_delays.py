"""Delays of events, also of those that no status shows."""

from bench.scale.results.event_delays import EventDelays


def test_an_event_counts_until_the_first_status_that_shows_it() -> None:
    delays = EventDelays()
    delays.cause("a", 10.0)
    delays.show("a", 10.5)
    delays.show("a", 13.0)
    assert delays.until(20.0) == [0.5]
    assert delays.missing == 0


def test_an_event_that_is_not_shown_counts_with_its_age() -> None:
    delays = EventDelays()
    delays.cause("a", 10.0)
    delays.cause("b", 12.0)
    delays.show("a", 11.0)
    assert delays.missing == 1
    assert delays.until(20.0) == [1.0, 8.0]


def test_a_status_before_its_event_does_not_count() -> None:
    delays = EventDelays()
    delays.show("a", 9.0)
    delays.cause("a", 10.0)
    assert delays.until(12.0) == [2.0]


def test_time_since_a_moment_is_never_negative() -> None:
    delays = EventDelays()
    for key, shown in (("early", 11.0), ("late", 17.5)):
        delays.cause(key, 10.0)
        delays.show(key, shown)
    delays.cause("never", 10.0)
    assert delays.since(15.0) == {"early": 0.0, "late": 2.5}
