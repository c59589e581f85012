"""Pages: each row comes once, in order, whatever is added or removed meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun_server.rest.base.pages import _digest, _encode, page_of
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.routes.runs import RunFilter

Row = tuple[float | None, str]
ROWS = st.lists(
    st.tuples(st.none() | st.floats(-3, 3), st.text("abc", min_size=1, max_size=3)), unique_by=lambda row: row[1]
)


def pages(rows: list[Row], descending: bool, limit: int) -> list[Row]:
    """Return the rows of all pages."""
    found: list[Row] = []
    cursor: str | None = ""
    while cursor is not None:
        page = page_of(
            rows, lambda r: r[0], lambda r: r[1], descending=descending, filters=RunFilter(), cursor=cursor, limit=limit
        )
        assert page.total == len(rows)
        found += page.rows
        cursor = page.next_cursor
    return found


@given(ROWS, st.booleans(), st.integers(1, 4))
def test_every_row_comes_once_and_those_without_a_value_last(rows: list[Row], descending: bool, limit: int) -> None:
    found = pages(rows, descending, limit)
    assert sorted(found, key=str) == sorted(rows, key=str)
    values = [value for value, _ in found if value is not None]
    assert values == sorted(values, reverse=descending)
    assert [value for value, _ in found[len(values) :]] == [None] * (len(rows) - len(values))


def test_a_row_that_goes_between_two_pages_moves_no_other() -> None:
    rows: list[Row] = [(float(n), str(n)) for n in range(6)]
    options = {"value_of": lambda r: r[0], "uid_of": lambda r: r[1], "descending": False, "filters": RunFilter()}
    first = page_of(rows, cursor="", limit=2, **options)  # type: ignore[arg-type]
    second = page_of(rows[2:], cursor=first.next_cursor or "", limit=2, **options)  # type: ignore[arg-type]
    assert [row[1] for row in second.rows] == ["2", "3"]


@given(st.text(max_size=60))
def test_text_that_is_no_cursor_is_refused(text: str) -> None:
    if not text:
        return
    with pytest.raises(RestError) as raised:
        page_of([], lambda _: 0.0, str, descending=False, filters=RunFilter(), cursor=text, limit=1)
    assert raised.value.status == 400


def test_a_number_that_is_too_large_is_no_cursor() -> None:
    filters = RunFilter()
    cursor = _encode((False, 10**400, "uid"), _digest(filters))
    with pytest.raises(RestError) as raised:
        page_of([], lambda _: 0.0, str, descending=False, filters=filters, cursor=cursor, limit=1)
    assert (raised.value.status, raised.value.reason) == (400, "CursorMismatch")
