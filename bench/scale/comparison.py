"""Comparison of new results with the ranges of recorded results. Pure.

The range of a row extends from the smallest to the largest of its repetitions. A number is worse if it is outside the
range in the wrong direction, by more than TOLERANCE of the range's bound. The comparison skips rows of different sizes,
times on cores of different speed, and rows that only one file has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report import Entry, explanation
from bench.scale.scenarios.scenario import HIGHER, SIZES

TOLERANCE = 0.2
SAME_SPEED = 1.25
"""Maximum ratio of the seconds of `loop_seconds` at which two machines count as equally fast."""
TIMES = ("s", "ms")
"""Units of numbers that depend on the speed of a core, unlike ratios and counts."""


@dataclass(frozen=True)
class Verdict:
    """Outcome for one row."""

    name: str
    outcome: Literal["ok", "worse", "invalid", "not compared"]
    text: str

    @property
    def fails(self) -> bool:
        """True if the comparison fails because of this row."""
        return self.outcome in ("worse", "invalid")


def compare(recorded: Sequence[Entry], new: Sequence[Entry]) -> list[Verdict]:
    """Return a verdict for each row of either file, in the order of the recorded rows."""
    now = {entry["name"]: entry for entry in new}
    known = {entry["name"] for entry in recorded}
    found = [_verdict(entry, now.get(entry["name"])) for entry in recorded]
    return [*found, *(Verdict(name, "not compared", "no range is recorded") for name in now if name not in known)]


def _verdict(recorded: Entry, new: Entry | None) -> Verdict:
    name = recorded["name"]
    if new is None or recorded["ratio"] is None:
        return Verdict(name, "not compared", "not measured")
    if recorded["valid"] is False:
        return Verdict(name, "not compared", "the range was recorded on a busy machine")
    if new["ratio"] is None:
        return Verdict(name, "worse", f"could not be measured: {'; '.join(new['notes'])}")
    if new["valid"] is False:
        return Verdict(name, "invalid", explanation(new))
    if differing := _difference(recorded, new):
        return Verdict(name, "not compared", differing)
    low, high = (float(recorded["repetitions"][end]) for end in ("min", "max"))
    number, higher = float(new["ratio"]), new["figures"]["better"] == HIGHER
    limit = low * (1 - TOLERANCE) if higher else high * (1 + TOLERANCE)
    # NaN counts as worse.
    is_ok = number >= limit if higher else number <= limit
    sign = ">=" if higher else "<="
    text = f"{number:.4g} {new['unit']}, must be {sign} {limit:.4g} (recorded {low:.4g} to {high:.4g})"
    return Verdict(name, "ok" if is_ok else "worse", text)


def _difference(recorded: Entry, new: Entry) -> str:
    """Return the reason why two rows cannot be compared, or an empty string."""
    pairs = [(size, recorded["figures"].get(size), new["figures"].get(size)) for size in SIZES]
    pairs += [("unit", recorded["unit"], new["unit"]), ("cores", *(e["machine"]["cores"] for e in (recorded, new)))]
    if parts := [f"{what} {old} and {now}" for what, old, now in pairs if old != now]:
        return f"other sizes: {', '.join(parts)}"
    loops = [entry["machine"].get("loop_seconds") for entry in (recorded, new)]
    if recorded["unit"] not in TIMES or None in loops or max(loops) <= SAME_SPEED * min(loops):
        return ""
    old, now = (f"{1000 * loop:.0f} ms" for loop in loops)
    return f"other speed of a core: a million additions took {old} and {now}"
