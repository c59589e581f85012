"""Plays the cited tests of one level in one process, with the effect of one field after the other removed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.proofs.verdicts import MARK

NO_TESTS_COLLECTED = 5
ROOT = Path(__file__).resolve().parents[2]
STARTUP = Path("tests/proofs/startup")

Level = Literal["unit", "image", "apiserver", "e2e"]
LEVELS: tuple[Level, ...] = ("unit", "image", "apiserver", "e2e")
"""Levels in the order of their cost."""
REMOVED_FROM = {"image": "SessionSpec"}
"""Class that loses the field. The trainer never reads the run's spec; it reads the session that is made of it."""


@dataclass(frozen=True)
class Verdict:
    """Outcome of one test with the effect of one field removed. verdicts.py explains the values of `verdict`."""

    field: str
    test: str
    verdict: str
    error: str = ""
    seconds: float = 0.0


def level_of(test: str) -> Level:
    """Return the level of a test by its path, tests/unit/..."""
    return next(level for level in LEVELS if test.startswith(f"tests/{level}/"))


def play(level: Level, cited: Mapping[str, Sequence[str]], *, every: bool = False) -> Iterator[Verdict]:
    """Yield the verdicts on the tests cited by each field, as they come. `cited` has tests of this level only."""
    tests = sorted({test for of_field in cited.values() for test in of_field})
    variables = {
        "RLRUN_REMOVED_FROM": REMOVED_FROM.get(level, "RLRunSpec"),
        "RLRUN_PROOF_FIELDS": ",".join(cited),
        "RLRUN_PROOF_EVERY": "1" if every else "",
    }
    pytest = ["-m", "pytest", *tests, "-q", "--tb=native", "-p", "tests.proofs.verdicts", "-p", "no:cacheprovider"]
    # Falsifying examples of hypothesis are no failures of the product: the developer's own database stays without them.
    with tempfile.TemporaryDirectory(prefix="rlrun-proofs-") as folder:
        if level == "image":
            options = [option for name, value in variables.items() for option in ("--env", f"{name}={value}")]
            with_startup = ["sh", "-c", f'PYTHONPATH="$PWD/{STARTUP}:$PYTHONPATH" exec "$@"', "sh", "python"]
            argv = ["-m", "local_cluster.images", "run", *options, "trainer", "--", *with_startup, *pytest]
            environment = dict(os.environ)
        else:
            argv = pytest
            path = f"{ROOT / STARTUP}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            environment = os.environ | variables | {"PYTHONPATH": path, "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        yield from verdicts_of([sys.executable, *argv], environment, cited)


def verdicts_of(
    argv: Sequence[str], environment: Mapping[str, str], cited: Mapping[str, Sequence[str]]
) -> Iterator[Verdict]:
    """Yield the verdicts that the process prints; if it fails, `broken` with its last lines for all other tests."""
    words: list[str] = []
    red, played = set(), set()
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if MARK in line:
                verdict = Verdict(**json.loads(line.partition(MARK)[2]))
                played.add((verdict.field, verdict.test))
                red.update([verdict.field] if verdict.verdict == "failed" else [])
                yield verdict
            else:
                words.append(line)
    if process.returncode not in (0, NO_TESTS_COLLECTED):
        said = "".join(words[-10:]).strip()
        for field in cited.keys() - red:
            yield from (Verdict(field, test, "broken", said) for test in cited[field] if (field, test) not in played)
