"""Judgment of each field from the verdicts on its tests: is one red when the field has no effect?"""

import dataclasses
from collections.abc import Iterable, Sequence

from tests.proofs.play import LEVELS, Level, Verdict, level_of


@dataclasses.dataclass
class FieldResult:
    """Result of one field, as in build/proofs.json."""

    field: str
    tests: list[str]
    """All cited tests."""
    reason: str = ""
    """Entry in without_effect.py."""
    red: bool = False
    level: str = ""
    """Level of the first red test; if there is none, the most costly level of the cited tests."""
    red_tests: dict[str, str] = dataclasses.field(default_factory=dict)
    """Error by red test."""
    green: list[str] = dataclasses.field(default_factory=list)
    """Tests that were played and noticed nothing."""
    unclear: dict[str, str] = dataclasses.field(default_factory=dict)
    """Tests that say nothing about the field, with the reason."""

    def __post_init__(self) -> None:
        self.level = max((level_of(test) for test in self.tests), key=LEVELS.index, default="")

    def add(self, verdict: Verdict) -> None:
        """Take the verdict on a test, or on one of its cases: a single red case is enough."""
        test = verdict.test
        if verdict.verdict == "failed":
            if not self.red:
                self.red, self.level = True, level_of(test)
            self.red_tests.setdefault(test, verdict.error)
            self.green = [green for green in self.green if green != test]
            self.unclear.pop(test, None)
        elif test in self.red_tests:
            return
        elif verdict.verdict == "passed":
            if test not in self.green:
                self.green.append(test)
        else:
            self.unclear.setdefault(test, f"{verdict.verdict}: {verdict.error}")

    def cited_at(self, level: Level) -> list[str]:
        """Return the cited tests of a level."""
        return [test for test in self.tests if level_of(test) == level]

    @property
    def only_e2e(self) -> bool:
        """True if all cited tests are of the e2e level."""
        return bool(self.tests) and all(level_of(test) == "e2e" for test in self.tests)

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON."""
        return dataclasses.asdict(self)


def accepted(result: FieldResult, levels: Sequence[Level]) -> bool:
    """Return whether the field is proved, or has a reason, or has only proofs of the e2e level that were not played."""
    return result.red or bool(result.reason) or (result.only_e2e and "e2e" not in levels)


def summary(results: Iterable[FieldResult], levels: Sequence[Level], *, every: bool) -> list[str]:
    """Return the lines of the summary for people."""
    results = list(results)
    lines = [f"{sum(r.red for r in results)} of {len(results)} fields: a cited test is red without the field's effect"]
    for result in results:
        if result.red:
            continue
        if accepted(result, levels):
            lines.append(
                f"  accepted: {result.field}: {result.reason or 'cites e2e tests only, which were not played'}"
            )
            continue
        lines.append(f"  NOT RED: {result.field}")
        lines += [f"    noticed nothing: {test}" for test in result.green]
        lines += [f"    says nothing: {test}: {why}" for test, why in result.unclear.items()]
        if not result.tests:
            lines.append("    no test cites it: mark the test that proves it with @pytest.mark.proves")
    for result in results:
        if result.red and result.reason:
            lines.append(f"  {result.field} is red: remove its reason from tests/proofs/without_effect.py")
        if result.red and every:
            lines += [f"  cites {result.field} and noticed nothing: {test}" for test in result.green]
    return lines


def in_shares(results: Sequence[FieldResult], workers: int) -> list[list[FieldResult]]:
    """Return the fields in one list per worker. Fields that cite a common test stay together if they follow another."""
    size = -(-len(results) // max(1, workers))
    return [list(results[start : start + size]) for start in range(0, len(results), size)] if results else []
