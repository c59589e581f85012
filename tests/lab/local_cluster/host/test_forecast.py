"""Forecasts of the time that a command still needs."""

from local_cluster.host.forecast import CommandSteps, in_words, seconds_left

PLAN = CommandSteps((("compile",), ("base", "trainer"), ("base", "operator")), ("import",))
EXPECTED = {"compile": 300.0, "base": 100.0, "trainer": 250.0, "operator": 50.0, "import": 40.0}


def test_longest_track_and_what_follows_count() -> None:
    assert seconds_left(PLAN, EXPECTED, {}, {}) == 350 + 40


def test_time_of_running_steps_is_over_also_if_they_take_longer() -> None:
    assert seconds_left(PLAN, EXPECTED, {"compile": 10, "base": 60}, {}) == 290 + 40
    assert seconds_left(PLAN, EXPECTED, {"compile": 10, "base": 900}, {}) == 290 + 40


def test_finished_steps_show_the_speed_of_the_machine() -> None:
    assert seconds_left(PLAN, EXPECTED, {}, {"base": 200.0}) == 2 * (300 + 40)
    assert seconds_left(PLAN, EXPECTED, {}, {"base": 100.0, "compile": 300.0}) == 250 + 40


def test_short_steps_show_nothing_about_the_machine() -> None:
    assert seconds_left(PLAN, EXPECTED, {}, {"operator": 500.0}) == 350 + 40


def test_unknown_steps_take_no_time() -> None:
    assert seconds_left(CommandSteps((("other",),)), EXPECTED, {"other": 5}, {}) == 0
    assert seconds_left(CommandSteps(()), EXPECTED, {}, {}) == 0


def test_words() -> None:
    assert in_words(0) == in_words(59) == "about a minute"
    assert in_words(61) == "about 2 min"
