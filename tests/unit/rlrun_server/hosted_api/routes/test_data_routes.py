"""Metrics by step for hosted clients."""

import json

import pytest
from rlrun_server.hosted_api.routes import data_routes
from rlrun_server.hosted_api.routes.data_routes import TooManyRows, rows_of, total_tokens
from rlrun_server.rest.metrics.metric_columns import read_columns

LINES = [
    {
        "step": n,
        "time": f"t{n}",
        "progress/step": n,
        "progress/total_tokens": 10 * n,
        **({"reward": 0.5} if n % 2 else {}),
    }
    for n in range(1, 11)
]
COLUMNS = read_columns([b"".join(json.dumps(line).encode() + b"\n" for line in LINES)])


@pytest.mark.parametrize(
    ("first", "last", "limit", "steps"),
    [
        (0, 99, None, range(1, 11)),
        (3, 5, None, [3, 4, 5]),
        (0, 99, 2, [9, 10]),
        (3, 5, 9, [3, 4, 5]),
        (50, 99, None, []),
    ],
)
def test_ranges(first: int, last: int, limit: int | None, steps: list[int]) -> None:
    assert [row["step"] for row in rows_of(COLUMNS, first, last, limit)] == list(steps)


def test_a_step_has_the_numbers_that_it_has() -> None:
    one, two = rows_of(COLUMNS, 1, 2, None)
    assert (one["timestamp"], one["reward"]) == ("t1", 0.5)
    assert "reward" not in two
    json.dumps([one, two], allow_nan=False)
    assert total_tokens(COLUMNS) == 100
    assert total_tokens(read_columns([])) == 0


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_routes, "MAX_VALUES", 15)
    with pytest.raises(TooManyRows, match="at most 5 steps"):
        rows_of(COLUMNS, 0, 99, None)
    assert len(rows_of(COLUMNS, 0, 99, 5)) == 5


def test_long_names_count_for_each_step() -> None:
    numbers = {str(n) + 250 * "\u00e9": 0.5 for n in range(100)}
    lines = [json.dumps({"step": n, "time": "", **numbers}).encode() + b"\n" for n in range(1, 400)]
    columns = read_columns([b"".join(lines)])
    with pytest.raises(TooManyRows) as refused:
        rows_of(columns, 0, 999, None)
    fitting = int(str(refused.value).split()[-2])
    answer = json.dumps(rows_of(columns, 0, 999, fitting))
    assert 0.8 * data_routes.MAX_BYTES < len(answer) <= data_routes.MAX_BYTES
