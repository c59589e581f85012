"""Fields are judged by the verdicts on their tests, and nothing that was not played counts as a proof."""

import pytest

from tests.proofs.judge import FieldResult, accepted, in_shares, summary
from tests.proofs.play import Verdict

UNIT, E2E = "tests/unit/test_a.py::test_a", "tests/e2e/test_b.py::test_b"


def judged(tests: list[str], *verdicts: str, reason: str = "") -> FieldResult:
    result = FieldResult("seed", tests, reason)
    for verdict in verdicts:
        result.add(Verdict("seed", UNIT, verdict, "why"))
    return result


@pytest.mark.parametrize(
    ("verdicts", "red", "green", "unclear"),
    [
        ((), False, 0, 0),
        (("passed", "failed", "passed"), True, 0, 0),
        (("passed", "passed"), False, 1, 0),
        (("unclear", "failed"), True, 0, 0),
        (("broken",), False, 0, 1),
        (("skipped",), False, 0, 1),
    ],
)
def test_a_test_is_red_if_one_of_its_cases_is_red(
    verdicts: tuple[str, ...], red: bool, green: int, unclear: int
) -> None:
    result = judged([UNIT], *verdicts)
    assert (result.red, len(result.green), len(result.unclear)) == (red, green, unclear)
    assert accepted(result, ["unit"]) is red


def test_a_field_with_e2e_proofs_only_is_accepted_if_that_level_was_not_played() -> None:
    result = judged([E2E])
    assert (result.level, result.red) == ("e2e", False)
    assert accepted(result, ["unit"])
    assert not accepted(result, ["unit", "e2e"])
    assert not accepted(judged([UNIT, E2E], "passed"), ["unit"])


def test_a_field_without_any_test_is_not_accepted_and_one_with_a_reason_is() -> None:
    assert not accepted(judged([]), ["unit"])
    assert accepted(judged([], reason="a mere name"), ["unit"])
    assert "  accepted: seed: a mere name" in summary([judged([], reason="a mere name")], ["unit"], every=False)


def test_a_reason_that_is_out_of_date_is_reported() -> None:
    lines = summary([judged([UNIT], "failed", reason="a mere name")], ["unit"], every=False)
    assert any("remove its reason" in line for line in lines)


def test_weak_citations_are_listed_if_all_were_played() -> None:
    result = judged([UNIT, E2E], "failed")
    result.add(Verdict("seed", E2E, "passed"))
    assert f"  cites seed and noticed nothing: {E2E}" in summary([result], ["unit", "e2e"], every=True)


def test_workers_share_all_fields() -> None:
    fields = [FieldResult(str(n), []) for n in range(5)]
    assert [[f.field for f in share] for share in in_shares(fields, 2)] == [["0", "1", "2"], ["3", "4"]]
    assert in_shares([], 2) == []
