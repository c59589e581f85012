"""Results of benchmarks: build/bench/<name>.json, one file per benchmark, with all that a reader needs to doubt it.

A result is one number against one aim, with all samples it was computed from. Every result says by itself which
command made it, when, on which machine and from which commit, because each part of a benchmark can be run alone: a new
result takes the place of the one of the same name, and the others of the file stay.

    from bench.report import Result, at_most, record
    record("publish", Result("latency", "trainer has the adapter -> all replicas serve it", 0.31, at_most(0.5), "s p50",
                             samples=[{"step": 1, "seconds": 0.31}]))
"""

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
NAMES = ("trl", "async", "publish", "gateway", "trainer", "checkpoint", "recovery")
"""The benchmarks, in the order of the table."""
DIGITS = 6
"""Significant digits of the numbers in a file: enough for every use, and a diff stays readable."""


@dataclass(frozen=True)
class Target:
    """What the number ought to be."""

    sign: str
    value: float

    def met_by(self, number: float | None) -> bool:
        """Whether the number reaches it; no number never does."""
        if number is None or math.isnan(number):
            return False
        return number >= self.value if self.sign == ">=" else number <= self.value


def at_least(value: float) -> Target:
    """An aim that larger numbers meet."""
    return Target(">=", value)


def at_most(value: float) -> Target:
    """An aim that smaller numbers meet."""
    return Target("<=", value)


@dataclass(frozen=True)
class Result:
    """One number of a benchmark against one aim."""

    name: str
    """Unique within the benchmark: `waiting task`."""
    what: str
    """What was measured, in one line."""
    ratio: float | None
    """The number that the aim is about; None when it could not be measured, which `notes` then explains."""
    aim: Target | None
    """None where a number is only reported."""
    unit: str = "x"
    """`x` for a ratio of two things, else what it is: `s p50`, `req/s`."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Every measurement, none left out."""
    notes: Sequence[str] = ()
    """What a reader must know: settings that differ, what was not run, where the time went."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers that the text of the documentation may quote."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of what was measured where it ran elsewhere (another virtual environment, an image)."""


def machine(versions: Mapping[str, str] | None = None, packages: Sequence[str] = ()) -> dict[str, Any]:
    """This machine: cores this process may use, memory, Python, and versions of the packages installed here."""
    found = dict(versions or {})
    for package in packages:
        try:
            found.setdefault(package, version(package))
        except PackageNotFoundError:
            continue
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "versions": found,
    }


def record(benchmark: str, result: Result, folder: Path = BUILD) -> Path:
    """Writes the result into `<folder>/<benchmark>.json` in place of an older one of its name; returns the file.

    Raises ValueError for a benchmark that the table does not know.
    """
    if benchmark not in NAMES:
        raise ValueError(f"benchmark {benchmark!r} is unknown: use one of {', '.join(NAMES)}, or add it to NAMES")
    path = folder / f"{benchmark}.json"
    older: list[dict[str, Any]] = json.loads(path.read_text())["results"] if path.exists() else []
    entry = {
        "name": result.name,
        "what": result.what,
        "command": command(),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(result.versions),
        "ratio": result.ratio,
        "unit": result.unit,
        "aim": f"{result.aim.sign} {result.aim.value:g}" if result.aim else None,
        "met": result.aim.met_by(result.ratio) if result.aim and result.ratio is not None else None,
        "notes": list(result.notes),
        "figures": dict(result.figures),
        "samples": [dict(sample) for sample in result.samples],
    }
    names = [old["name"] for old in older]
    results = [_rounded(entry) if old["name"] == result.name else old for old in older]
    if result.name not in names:
        results.append(_rounded(entry))
    folder.mkdir(parents=True, exist_ok=True)
    # Another part of the same benchmark must never find half a file.
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"name": benchmark, "results": results}, indent=1) + "\n")
    draft.replace(path)
    print(f"{benchmark} / {result.name}: {line(entry)}  -> {_shown(path)}", flush=True)
    return path


def measured(benchmark: str, name: str, folder: Path = BUILD) -> bool:
    """Whether the file already has a number under that name."""
    path = folder / f"{benchmark}.json"
    entries: list[dict[str, Any]] = json.loads(path.read_text())["results"] if path.exists() else []
    return any(entry["name"] == name and entry["ratio"] is not None for entry in entries)


def line(entry: Mapping[str, Any]) -> str:
    """A result in a few words: `3.4 x (aim >= 3: met)`."""
    if entry["ratio"] is None:
        return "not measured"
    verdict = {True: "met", False: "MISSED", None: "no aim"}[entry["met"]]
    aim = f" (aim {entry['aim']}: {verdict})" if entry["aim"] else ""
    return f"{entry['ratio']:.3g} {entry['unit']}{aim}"


def command() -> str:
    """The command line of this process, as one would type it in the checkout."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = f"-m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name
    return " ".join(["python", name, *sys.argv[1:]])


def commit() -> str:
    """The checkout's commit, `-dirty` behind it when files differ; `RLRUN_COMMIT` where there is no git (an image)."""
    if os.environ.get("RLRUN_COMMIT"):
        return os.environ["RLRUN_COMMIT"]
    found = [_git("rev-parse", "HEAD"), "-dirty" if _git("status", "--porcelain") else ""]
    return "".join(found)


def _git(*args: str) -> str:
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.machine()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
