import math

from rlrun_cli.terminal.plot import plot


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    lines = plot("reward", [(1, 0.0), (9, 1.0)], width=4, height=2)
    assert lines == ["reward", "1 │⠀⠀⡠⠊", "0 │⡠⠊", "  └────", "   1  9"]


def test_a_constant_has_one_label() -> None:
    assert plot("x", [(0, 2.5), (1, 2.5)], width=2, height=3)[1:4] == ["    │", "2.5 │⠒⠒", "    │"]


def test_one_point_and_values_that_are_not_finite() -> None:
    assert plot("x", [(3, 1.0), (4, math.nan), (5, math.inf)], width=2, height=1)[-1].split() == ["3"]
    assert plot("x", [(3, math.nan)]) == ["x: no values"]
    assert plot("x", []) == ["x: no values"]
