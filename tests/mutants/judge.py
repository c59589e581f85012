"""Judgment of a module: how many of a sample of its changes do its tests notice?"""

import ast
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.mutations import Mutation, mutations
from tests.mutants.play import STOPPED, Run, run

GOAL = 0.85
LEAST = 10
"""So many changes must be run before the time is up, if the sample has so many: fewer say nothing about a module."""
PATIENCE = 20
"""Seconds that a run with a change may take beyond five times those without one."""
WAYS = {STOPPED: "deadline", 1: "failed", 2: "not collected", 4: "not collected"}
"""How tests notice a change, by the code of the run. All other codes say nothing about the change."""


@dataclass
class ModuleResult:
    """Result of one module, as in build/mutants.json."""

    module: str
    tests: list[str]
    mutations: int = 0
    """Number of possible changes."""
    wanted: int = 0
    """Size of the sample."""
    sampled: int = 0
    """Number of changes that were run before the time was up."""
    killed: int = 0
    ways: dict[str, int] = field(default_factory=dict)
    """How the changes were noticed: a test failed, the deadline stopped the tests, they could not be collected."""
    survivors: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    """Reason for which the module could not be judged."""
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """Share of the changes that a test noticed. 0 if none was run."""
        return self.killed / self.sampled if self.sampled else 0.0

    @property
    def reached(self) -> bool:
        """True if the module was judged and reached the goal."""
        return not self.problem and self.score >= GOAL

    def add(self, mutation: Mutation, source: str, done: Run) -> None:
        """Take the outcome of one change."""
        self.sampled += 1
        way = WAYS.get(done.code)
        if way is not None:
            self.killed += 1
            self.ways[way] = self.ways.get(way, 0) + 1
            return
        line = source.splitlines()[mutation.line - 1].strip() if mutation.line else ""
        survivor = {"line": mutation.line, "change": f"{mutation.before}  ->  {mutation.after}", "source": line}
        self.survivors.append(survivor | ({"code": done.code} if done.code else {}))

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self) | {"score": round(self.score, 3), "seconds": round(self.seconds, 1)}


def judge(
    root: Path,
    module: str,
    tests: Sequence[str],
    size: int,
    seed: int,
    until: float,
    functions: Sequence[str] = (),
) -> ModuleResult:
    """Run a sample of the module's changes against its tests. No change is begun after `until`. With `functions`, only
    these are changed.
    """
    started = time.monotonic()
    result = ModuleResult(module, list(tests))
    result.problem = _judge(result, root / module, size, seed, until, functions)
    result.seconds = time.monotonic() - started
    return result


def _judge(result: ModuleResult, path: Path, size: int, seed: int, until: float, functions: Sequence[str]) -> str:
    """Fill the result. Return the reason for which the module cannot be judged, or nothing."""
    source = path.read_text(encoding="utf-8")
    possible = list(mutations(source, functions))
    # All of them in random order: a larger sample contains the smaller one of the same seed.
    chosen = random.Random(f"{seed}/{result.module}").sample(possible, len(possible))[:size]
    result.mutations, result.wanted = len(possible), len(chosen)
    before = run(result.tests, 300, path, ast.parse(source))
    if before.code != 0:
        return f"its tests end with {before.code} without any change"
    if not before.applied:
        return "its tests never import it"
    for mutation in chosen:
        if time.monotonic() > until:
            break
        done = run(result.tests, PATIENCE + 5 * before.seconds, path, mutation.tree)
        if not done.applied and done.code == 0:
            return f"a change of line {mutation.line} was never executed"
        result.add(mutation, source, done)
    if result.sampled < min(LEAST, len(chosen)):
        return f"the time was up after {result.sampled} of {len(chosen)} changes"
    return ""
