"""`python -m tests.mutants`: change the modules that decide and see whether tests notice. build/mutants.json."""

import argparse
import fnmatch
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.mutants.judge import GOAL, ModuleResult, judge
from tests.mutants.modules import FUNCTIONS, IMAGE, UNIT, suite_of
from tests.mutants.play import import_core, import_libraries
from tests.support.source_tree import ROOT

PATH = Path("build/mutants.json")
MARK = "mutants-result "
DESCRIPTION = """Mutation tests of the modules that decide (tests/mutants/modules.py). A seeded sample of small changes
of each module (a comparison, a number, a condition, a statement) is run against the tests of that module, one change
at a time and in memory only. A change that no test notices is a survivor: it needs a test, or a reason in
docs/design/019-field-proofs.md.

A module is judged only if its tests pass without a change and execute its code. A change is noticed if a test fails,
if the tests can no longer be collected, or if they have to be stopped at a deadline; `ways` in the results counts
each. A run that ends in another way (a crash of Python, for example) counts as a survivor.

levels (both without --level):
  unit   operator, storage and orchestrator
  image  the trainer, inside its image

Exit code 1 if a module could not be judged or fewer than 85 % of its changes were noticed."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        "python -m tests.mutants", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--level", choices=("unit", "image"), help="only this level")
    found.add_argument("--module", metavar="PATH", action="append", help="only these: a path, or a pattern with *")
    found.add_argument("--sample", type=int, default=20, metavar="N", help="changes of each module (20)")
    found.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sample (0)")
    found.add_argument("--minutes", type=float, default=20, metavar="N", help="no change is begun afterwards (20)")
    found.add_argument("--workers", type=int, default=2, metavar="N", help="modules that are judged side by side (2)")
    found.add_argument("--output", type=Path, default=PATH, help=f"file of the results ({PATH})")
    found.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return found


def results_here(modules: list[str], asked: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """Yield the results of modules whose tests run in this environment. They share the time until `end`."""
    if not modules:
        return
    import_libraries()
    os.chdir(ROOT)
    judged = functools.partial(_judge, asked, end)
    left = [(module, len(modules) - number) for number, module in enumerate(modules)]
    with multiprocessing.get_context("fork").Pool(asked.workers, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(judged, left)


def _judge(asked: argparse.Namespace, end: float, task: tuple[str, int]) -> dict[str, Any]:
    module, left = task
    if not module.startswith("core/"):
        import_core()
    now = time.monotonic()
    until = now + (end - now) * min(1.0, asked.workers / left)
    return judge(ROOT, module, suite_of(module), asked.sample, asked.seed, until, FUNCTIONS.get(module, ())).to_json()


def results_in_image(modules: list[str], asked: argparse.Namespace, end: float) -> Iterator[dict[str, Any]]:
    """Yield the results of the trainer's modules, from the same command inside its image."""
    if not modules:
        return
    options = [f"--module={module}" for module in modules]
    options += [f"--sample={asked.sample}", f"--seed={asked.seed}", f"--workers={asked.workers}"]
    options += [f"--minutes={(end - time.monotonic()) / 60:.2f}"]
    # Each worker is one process: more threads than cores would only wait for each other.
    image = [sys.executable, "-m", "local_cluster.images", "run", "--env", "OMP_NUM_THREADS=1", "trainer", "--"]
    with subprocess.Popen(
        [*image, "python", "-m", "tests.mutants", "--inside", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if MARK in line:
                yield json.loads(line.partition(MARK)[2])


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 if every module reached the goal, 1 if not, 2 if no module has that name."""
    asked = parser().parse_args(arguments)
    started = time.monotonic()
    end = started + 60 * asked.minutes

    def chosen(level: str, modules: dict[str, list[str]]) -> list[str]:
        patterns = asked.module or ["*"]
        wanted = asked.level in (None, level)
        return [m for m in modules if wanted and any(fnmatch.fnmatchcase(m, pattern) for pattern in patterns)]

    unit, image = chosen("unit", UNIT), chosen("image", IMAGE)
    if asked.inside:
        for result in results_here(image, asked, end):
            print(MARK + json.dumps(result), flush=True)
        return 0
    if not unit and not image:
        print("No module has that path: tests/mutants/modules.py lists them", file=sys.stderr)
        return 2
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="rlrun-mutants-") as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        # The trainer's tests take longer: they get what the others leave, and at least half of the time.
        half = end if not image else started + 30 * asked.minutes
        for found in (results_here(unit, asked, half), results_in_image(image, asked, end)):
            for result in found:
                results.append(result)
                print("\n".join(lines_of(result)), flush=True)
                _write(asked, results, time.monotonic() - started)
    missing = sorted({*unit, *image} - {result["module"] for result in results})
    results += [ModuleResult(module, suite_of(module), problem="its run ended early").to_json() for module in missing]
    _write(asked, results, time.monotonic() - started)
    short = [result for result in results if result["problem"] or result["score"] < GOAL]
    for result in short:
        print(f"  NOT REACHED: {result['module']}: {result['problem'] or _share(result)}")
    print(f"{len(results) - len(short)} of {len(results)} modules: tests notice at least {GOAL:.0%} of the changes")
    return 1 if short else 0


def lines_of(result: dict[str, Any]) -> list[str]:
    """Return the lines about one module: its score and its survivors."""
    lines = [f"{result['problem'] or _share(result):<26} {result['module']} ({result['seconds']:.0f} s)"]
    return lines + [f"  survived: line {s['line']}: {s['change']}" for s in result["survivors"]]


def _share(result: dict[str, Any]) -> str:
    cut = "" if result["sampled"] == result["wanted"] else f" (of {result['wanted']})"
    return f"{result['killed']} of {result['sampled']}{cut} noticed, {result['score']:.0%}"


def _write(asked: argparse.Namespace, results: list[dict[str, Any]], seconds: float) -> None:
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    head = {"seed": asked.seed, "commit": _commit(), "sample": asked.sample, "goal": GOAL, "seconds": round(seconds)}
    asked.output.write_text(json.dumps({**head, "modules": results}, indent=1) + "\n", encoding="utf-8")


@functools.cache
def _commit() -> str:
    """Return the commit of the tree, with `+changes` if files differ from it. Empty outside a repository."""
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
