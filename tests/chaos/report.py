"""Results of the scenarios: build/chaos.json after every scenario, and a table at the end.

Results of several calls stand side by side in the file, so each names the call that it comes from: commit, time,
machine and seed.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.report import commit, machine
from tests.chaos.scenario import Origin, Outcome, Result

PATH = Path("build/chaos.json")


def this_call(seed: int) -> Origin:
    """Where results of this process come from."""
    found = machine()
    described = f"{found['cores']} cores ({found['cpu']}), {found['memory_gib']:.0f} GiB, Python {found['python']}"
    return Origin(commit(), datetime.now(UTC).isoformat(timespec="seconds"), described, seed)


class Report:
    """Results so far; each one is on disk before the next scenario begins."""

    def __init__(self, path: Path = PATH, earlier: Iterable[Result] = (), origin: Origin | None = None) -> None:
        self.path = path
        self.origin = origin
        self.results: list[Result] = list(earlier)
        self._write()

    def add(self, result: Result) -> None:
        """Keeps the result; one of the same level, name and seed is replaced."""
        key = (result.level, result.name, result.seed)
        self.results = [r for r in self.results if (r.level, r.name, r.seed) != key]
        self.results.append(replace(result, origin=self.origin or result.origin))
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(to_json(self.results), indent=1)
        # By rename: if this process is killed, the file has the results up to the previous scenario.
        beside = self.path.with_suffix(".tmp")
        beside.write_text(text + "\n", encoding="utf-8")
        os.replace(beside, self.path)


def to_json(results: Sequence[Result]) -> dict[str, Any]:
    """The calls that results come from, and the results with the index of their call."""
    calls = origins(results)
    scenarios = [r.to_json() | {"call": calls.index(r.origin) if r.origin else None} for r in results]
    return {"calls": [vars(call) for call in calls], "scenarios": scenarios}


def from_json(found: Mapping[str, Any]) -> list[Result]:
    """The results in what `to_json` gives. Raises KeyError, ValueError or TypeError for anything else."""
    calls = [Origin(**call) for call in found["calls"]]
    results = []
    for entry in found["scenarios"]:
        known = {name: value for name, value in entry.items() if name != "call"}
        origin = None if entry["call"] is None else calls[entry["call"]]
        results.append(Result(**(known | {"outcome": Outcome(entry["outcome"]), "origin": origin})))
    return results


def origins(results: Iterable[Result]) -> list[Origin]:
    """The calls that results come from, each once, in their order."""
    return list(dict.fromkeys(r.origin for r in results if r.origin is not None))


def read(path: Path = PATH) -> list[Result]:
    """The results of an earlier call; empty where there are none."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def family(name: str) -> str:
    """Scenarios that differ in a number only are counted together: `crash-before/0017-get` is of `crash-before`."""
    return name.partition("/")[0]


def table(results: Sequence[Result]) -> str:
    """A line per family, then every failure with its first words."""
    families = sorted({(r.level, family(r.name)) for r in results}, key=lambda f: (f[0], f[1]))
    lines = [f"{'level':<10} {'scenarios':<34} {'played':>6} {'survived':>8} {'seconds':>8}"]
    for level, name in families:
        mine = [r for r in results if (r.level, family(r.name)) == (level, name)]
        good = sum(r.outcome is Outcome.survived for r in mine)
        lines.append(f"{level:<10} {name:<34} {len(mine):>6} {good:>8} {sum(r.seconds for r in mine):>8.1f}")
    for result in failures(results):
        first = next((line for line in reversed(result.detail.splitlines()) if line.strip()), "")
        if result.outcome is not Outcome.broken:
            first = result.detail.partition("\n")[0]
        lines.append(f"{result.outcome.value}: {result.level} {result.name} (seed {result.seed}): {first[:300]}")
    counts = Counter(r.outcome.value for r in results)
    lines.append(f"{len(results)} scenarios: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return "\n".join(lines)


def failures(results: Iterable[Result]) -> list[Result]:
    """Those that did not survive. A fault that was not reached, where that may be, is none of them."""
    return [r for r in results if r.outcome not in (Outcome.survived, Outcome.not_reached)]
