"""What was played and how it came out: build/chaos.json after every scenario, and a table for people at the end."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.chaos.scenario import Outcome, Result

PATH = Path("build/chaos.json")


class Report:
    """Results so far; each one is on disk before the next scenario begins."""

    def __init__(self, path: Path = PATH, earlier: Iterable[Result] = ()) -> None:
        self.path = path
        self.results: list[Result] = list(earlier)
        self._write()

    def add(self, result: Result) -> None:
        """Keeps the result; one of the same level, name and seed is replaced."""
        key = (result.level, result.name, result.seed)
        self.results = [r for r in self.results if (r.level, r.name, r.seed) != key]
        self.results.append(result)
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"scenarios": [r.to_json() for r in self.results]}, indent=1)
        # By rename: whoever cuts this off finds the list as it was after the last scenario.
        beside = self.path.with_suffix(".tmp")
        beside.write_text(text + "\n", encoding="utf-8")
        os.replace(beside, self.path)


def read(path: Path = PATH) -> list[Result]:
    """The results of an earlier call; empty where there are none."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["scenarios"]
    except (OSError, ValueError, KeyError):
        return []
    return [Result(**(entry | {"outcome": Outcome(entry["outcome"])})) for entry in entries]


def family(name: str) -> str:
    """Scenarios that differ in a number only are counted together: `crash-before/0017-get` is of `crash-before`."""
    return name.partition("/")[0]


def table(results: Sequence[Result]) -> str:
    """A line per family, then every scenario that did not survive with its first words."""
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
    """Those that did not survive."""
    return [r for r in results if r.outcome is not Outcome.survived]
