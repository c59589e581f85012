"""Limits on open connections: who is refused, and who makes room."""

from rlrun_server.http.connection_limits import ConnectionLimits, OpenConnection


def admit(limits: ConnectionLimits, host: str, closed: list[str]) -> OpenConnection | None:
    return limits.admit(host, lambda: closed.append(host))


def busy(connection: OpenConnection | None) -> OpenConnection:
    assert connection is not None
    connection.is_busy = True
    return connection


def test_one_source_has_its_share() -> None:
    limits = ConnectionLimits(total=10, per_address=2)
    closed: list[str] = []
    busy(admit(limits, "2001:db8::1", closed))
    last = busy(admit(limits, "2001:db8::2", closed))
    assert admit(limits, "2001:db8::3", closed) is None
    assert admit(limits, "2001:db8:0:1::3", closed)
    limits.release(last)
    limits.release(last)
    assert limits.count == 2
    assert admit(limits, "2001:db8::3", closed)
    assert not closed


def test_idle_connections_of_a_source_make_room_for_its_new_ones() -> None:
    limits = ConnectionLimits(total=10, per_address=2)
    closed: list[str] = []
    busy(admit(limits, "10.0.0.1", closed))
    assert limits.admit("10.0.0.1", lambda: closed.append("the idle one"))
    assert limits.admit("10.0.0.2", lambda: closed.append("one of another source"))
    busy(admit(limits, "10.0.0.1", closed))
    assert closed == ["the idle one"]
    assert admit(limits, "10.0.0.1", closed) is None, "both have requests in progress"
    assert limits.count == 3


def test_the_source_with_the_most_makes_room() -> None:
    limits = ConnectionLimits(total=4, per_address=4)
    closed: list[str] = []
    busy(admit(limits, "many", closed))
    for _ in range(3):
        admit(limits, "many", closed)
    assert admit(limits, "one", closed)
    assert closed == ["many"]
    assert limits.count == 4
    assert admit(limits, "other", closed)
    assert admit(limits, "third", closed)
    assert closed == ["many"] * 3
    assert admit(limits, "fourth", closed), "each source has one, and the oldest idle one makes room"
    assert closed == ["many"] * 3 + ["one"]
    assert limits.count == 4


def test_the_source_with_the_most_takes_no_room_of_others() -> None:
    limits = ConnectionLimits(total=4, per_address=4)
    closed: list[str] = []
    for _ in range(3):
        busy(admit(limits, "many", closed))
    assert admit(limits, "one", closed)
    assert admit(limits, "many", closed) is None
    assert not closed


def test_busy_connections_of_the_largest_source_leave_those_of_others() -> None:
    limits = ConnectionLimits(total=4, per_address=4)
    closed: list[str] = []
    for _ in range(3):
        busy(admit(limits, "many", closed))
    assert admit(limits, "one", closed)
    assert admit(limits, "other", closed)
    assert closed == ["one"]


def test_requests_in_progress_are_not_closed() -> None:
    limits = ConnectionLimits(total=3, per_address=3)
    closed: list[str] = []
    for _ in range(3):
        busy(admit(limits, "many", closed))
    assert admit(limits, "one", closed) is None
    assert not closed
    assert limits.refused == 1
