"""Result files of benchmarks: build/bench/<name>.json, one per benchmark, with everything needed to verify them.

A result is one number with one target and all samples from which it was computed. Every result records its command,
time, machine and commit, because each part of a benchmark can run alone: a new result replaces the one with the same
name and keeps the others.

    from bench.report import Result, at_most, record
    record("server", Result("runs", "GET of a page of runs", 61.0, at_most(200), "ms p99",
                            samples=[{"p99_ms": 61.0}], repetitions=[58.0, 61.0, 70.0], cores_busy=[0.1]))

A result measured on a busy machine is recorded as invalid and neither meets nor misses its target.
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
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.machine_load import CORES, loop_seconds
from bench.repetitions import Spread
from bench.validity import Validity
from bench.validity import validity as validity_of

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
NAMES = ("trl", "async", "gateway", "trainer", "scale", "server")
"""Names of the benchmarks, in the order of the table."""
DIGITS = 6
"""Significant digits of the numbers in a file; few enough for a readable diff."""


@dataclass(frozen=True)
class Target:
    """Target of a number."""

    sign: str
    value: float

    def met_by(self, number: float | None) -> bool:
        """Return True if the number reaches the target, and False without a number."""
        if number is None or math.isnan(number):
            return False
        return number >= self.value if self.sign == ">=" else number <= self.value


def at_least(value: float) -> Target:
    """Return a target that larger numbers meet."""
    return Target(">=", value)


def at_most(value: float) -> Target:
    """Return a target that smaller numbers meet."""
    return Target("<=", value)


@dataclass(frozen=True)
class Result:
    """Number measured by a benchmark, with its target."""

    name: str
    """Name that is unique within the benchmark, such as `waiting task`."""
    what: str
    """Description of the measurement in one line."""
    ratio: float | None
    """Measured number, or None if it could not be measured, for a reason given in `notes`."""
    aim: Target | None
    """Target of the number, or None if the number is only reported."""
    unit: str = "x"
    """Unit: `x` for a ratio, otherwise for example `s p50` or `req/s`."""
    samples: Sequence[Mapping[str, Any]] = ()
    """All measurements."""
    notes: Sequence[str] = ()
    """Remarks for the reader: settings that differ, what was not run, where the time went."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Further numbers for the text of the documentation."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages, if the measurement ran in another virtual environment or an image."""
    repetitions: Sequence[float] = ()
    """Value of each repetition."""
    with_startup: float | None = None
    """Number that includes the start-up time of both sides, or None if the measurement has no start-up."""
    cores_busy: Sequence[float] = ()
    """Number of usable cores that were busy before each measurement, from `bench.machine_load`."""


def machine(versions: Mapping[str, str] | None = None, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe this machine: usable cores, memory, speed of a core, Python, and versions of installed packages."""
    found = dict(versions or {})
    for package in packages:
        try:
            found.setdefault(package, version(package))
        except PackageNotFoundError:
            continue
    return {
        "cores": len(CORES),
        "cpu": _cpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "loop_seconds": _loop_seconds(),
        "python": platform.python_version(),
        "versions": found,
    }


@cache
def _loop_seconds() -> float:
    return loop_seconds()


def record(benchmark: str, result: Result, folder: Path = BUILD) -> Path:
    """Write the result into `<folder>/<benchmark>.json`, replacing an older one with its name. Returns the file.

    Raises ValueError for a benchmark that is not in NAMES.
    """
    if benchmark not in NAMES:
        raise ValueError(f"benchmark {benchmark!r} is unknown. Use one of {', '.join(NAMES)}, or add it to NAMES")
    path = folder / f"{benchmark}.json"
    older: list[dict[str, Any]] = json.loads(path.read_text())["results"] if path.exists() else []
    where = machine(result.versions)
    validity, spread = Validity(result.cores_busy, where["cores"]), Spread.of(result.repetitions)
    met = result.aim.met_by(result.ratio) if result.aim and result.ratio is not None else None
    entry = {
        "name": result.name,
        "what": result.what,
        "command": command(),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": where,
        "ratio": result.ratio,
        "unit": result.unit,
        "aim": f"{result.aim.sign} {result.aim.value:g}" if result.aim else None,
        "met": None if validity.valid is False else met,
        "valid": validity.valid,
        "cores_busy_before": list(result.cores_busy),
        "repetitions": spread.entry() if spread else None,
        "with_startup": result.with_startup,
        "notes": list(result.notes),
        "figures": dict(result.figures),
        "samples": [dict(sample) for sample in result.samples],
    }
    names = [old["name"] for old in older]
    results = [_round(entry) if old["name"] == result.name else old for old in older]
    if result.name not in names:
        results.append(_round(entry))
    folder.mkdir(parents=True, exist_ok=True)
    # Atomic, because another part of the benchmark may read the file.
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"name": benchmark, "results": results}, indent=1) + "\n")
    draft.replace(path)
    print(f"{benchmark} / {result.name}: {line(entry)}  -> {_relative_path(path)}", flush=True)
    return path


def measured(benchmark: str, name: str, folder: Path = BUILD) -> bool:
    """Return True if the file has a number under that name."""
    path = folder / f"{benchmark}.json"
    entries: list[dict[str, Any]] = json.loads(path.read_text())["results"] if path.exists() else []
    return any(entry["name"] == name and entry["ratio"] is not None for entry in entries)


def line(entry: Mapping[str, Any]) -> str:
    """Return a result as text: `3.4 x (target >= 3: met)`."""
    if entry["ratio"] is None:
        return "not measured"
    if entry.get("valid") is False:
        return f"{entry['ratio']:.3g} {entry['unit']}, {validity_of(entry).explanation()}"
    outcome = {True: "met", False: "MISSED", None: "no target"}[entry["met"]]
    aim = f" (target {entry['aim']}: {outcome})" if entry["aim"] else ""
    return f"{entry['ratio']:.3g} {entry['unit']}{aim}"


def command() -> str:
    """Return the command line of this process, relative to the checkout."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = f"-m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name
    return " ".join(["python", name, *sys.argv[1:]])


def commit() -> str:
    """Return the commit of the checkout, with `-dirty` if files differ; `RLRUN_COMMIT` in an image without git."""
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


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    return [_round(item) for item in value] if isinstance(value, list | tuple) else value


def _relative_path(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
