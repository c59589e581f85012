"""Limits on open connections: who is refused, and who makes room."""

from rlrun_server.http.connection_limits import ConnectionLimits, OpenConnection


def admit(limits: ConnectionLimits, host: str, closed: list[str]) -> OpenConnection | None:
    return limits.admit(host, lambda: closed.append(host))


def test_one_source_has_its_share() -> None:
    limits = ConnectionLimits(total=10, per_address=2)
    closed: list[str] = []
    assert admit(limits, "2001:db8::1", closed)
    last = admit(limits, "2001:db8::2", closed)
    assert last is not None
    assert admit(limits, "2001:db8::3", closed) is None
    assert admit(limits, "2001:db8:0:1::3", closed)
    limits.release(last)
    limits.release(last)
    assert limits.count == 2
    assert admit(limits, "2001:db8::3", closed)
    assert not closed


def test_the_source_with_the_most_makes_room() -> None:
    limits = ConnectionLimits(total=4, per_address=4)
    closed: list[str] = []
    opened = [admit(limits, "many", closed) for _ in range(4)]
    assert opened[0] is not None
    opened[0].is_busy = True
    assert admit(limits, "one", closed)
    assert closed == ["many"]
    assert limits.count == 4
    assert admit(limits, "many", closed) is None
    assert admit(limits, "other", closed)
    assert admit(limits, "third", closed)
    assert admit(limits, "fourth", closed) is None, "no source has two"
    assert closed == ["many"] * 3


def test_requests_in_progress_are_not_closed() -> None:
    limits = ConnectionLimits(total=3, per_address=3)
    closed: list[str] = []
    for _ in range(3):
        busy = admit(limits, "many", closed)
        assert busy is not None
        busy.is_busy = True
    assert admit(limits, "one", closed) is None
    assert not closed
    assert limits.refused == 1
