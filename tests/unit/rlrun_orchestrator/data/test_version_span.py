"""Versions of the policies that the turns of a group began with."""

from rlrun_orchestrator.data.version_span import VersionSpan


def test_the_first_turn_replaces_the_version_of_the_dispatch() -> None:
    span = VersionSpan.at(3)
    assert (span.oldest, span.newest) == (3, 3)
    span.add_turn(5)
    assert (span.oldest, span.newest) == (5, 5)


def test_further_turns_widen_the_span() -> None:
    span = VersionSpan.at(3)
    for version in (5, 4, 7):
        span.add_turn(version)
    assert (span.oldest, span.newest) == (4, 7)
