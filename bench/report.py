"""Result files of benchmarks: build/bench/<name>.jsonl, one result a line, with everything needed to verify them.

A result is one number with one target and all samples from which it was computed. Every result records its command,
time, machine and commit, because each part of a benchmark can run alone: a new result replaces the old result with the
same name and keeps all others.

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

from bench.machine_load import CORES, limit, loop_seconds
from bench.repetitions import spread_of

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
NAMES = ("trl", "async", "gateway", "wire", "trainer", "scale", "server", "pools", "tinker")
"""Names of the benchmarks, in the order of the table."""
DIGITS = 6
"""Significant digits of the numbers in a file; few enough for a readable diff."""

Entry = dict[str, Any]
"""Result as it is stored."""


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
    """Unit of the number, such as `s p50`."""
    samples: Sequence[Mapping[str, Any]] = ()
    """Every measurement that the number was computed from."""
    notes: Sequence[str] = ()
    """Comments for the table."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Other numbers of the measurement."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the compared programs."""
    repetitions: Sequence[float] = ()
    """The number of each repetition. `ratio` is their median unless its unit says otherwise."""
    with_startup: float | None = None
    """Number that also counts the start-up of both sides, or None if the sides have no start-up."""
    cores_busy: Sequence[float] = ()
    """Number of cores busy with other work before each measurement."""


def machine(versions: Mapping[str, str] | None = None, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return cores, memory, and speed of a core of this machine, with versions of Python and the named packages."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(CORES),
        "cpu": _cpu(),
        "memory_gib": round(memory / 2**30, 1),
        "loop_seconds": _speed(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {**_versions_of(packages), **(versions or {})},
    }


@cache
def _speed() -> float:
    return loop_seconds()


def _versions_of(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def record(benchmark: str, result: Result, folder: Path = BUILD) -> Path:
    """Write the result into the benchmark's file and print it. Returns the path.

    Raises ValueError for an unknown benchmark.
    """
    if benchmark not in NAMES:
        raise ValueError(f"the benchmark {benchmark!r} is unknown: one of {', '.join(NAMES)}")
    path = folder / f"{benchmark}.jsonl"
    entry = _round(entry_of(result))
    write_entries(path, merge_entries(read_entries(path), [entry]))
    print(f"{benchmark} / {result.name}: {line(entry)}  -> {path}", flush=True)
    return path


def entry_of(result: Result) -> Entry:
    """Return the stored form of a result that was measured by this process."""
    where = machine(result.versions)
    idle = all(reading <= limit(where["cores"]) for reading in result.cores_busy)
    met = result.aim.met_by(result.ratio) if result.aim and result.ratio is not None else None
    return {
        "name": result.name,
        "what": result.what,
        "command": command(),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": where,
        "ratio": result.ratio,
        "unit": result.unit,
        "aim": f"{result.aim.sign} {result.aim.value:g}" if result.aim else None,
        "met": met if idle else None,
        "valid": idle if result.cores_busy else None,
        "cores_busy_before": list(result.cores_busy),
        "repetitions": spread_of(result.repetitions),
        "with_startup": result.with_startup,
        "notes": list(result.notes),
        "figures": dict(result.figures),
        "samples": [dict(sample) for sample in result.samples],
    }


def read_entries(path: Path) -> list[Entry]:
    """Return the results in a file, or an empty list if the file does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_entries(path: Path, entries: Sequence[Entry]) -> None:
    """Replace a file's content by these results, atomically, because another part of the benchmark may read the
    file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    draft.replace(path)


def merge_entries(old: Sequence[Entry], new: Sequence[Entry]) -> list[Entry]:
    """Return the old rows that have no new result, with all new rows at the position of the first row that they
    replace.
    """
    names = {entry["name"] for entry in new}
    place = next((i for i, entry in enumerate(old) if entry["name"] in names), len(old))
    return [*old[:place], *new, *(entry for entry in old[place:] if entry["name"] not in names)]


def line(entry: Entry) -> str:
    """Return a result as text: `3.4 x (target >= 3: met)`."""
    if entry["ratio"] is None:
        return "not measured"
    if entry["valid"] is False:
        return f"{entry['ratio']:.3g} {entry['unit']}, {explanation(entry)}"
    outcome = {True: "met", False: "MISSED", None: "no target"}[entry["met"]]
    aim = f" (target {entry['aim']}: {outcome})" if entry["aim"] else ""
    return f"{entry['ratio']:.3g} {entry['unit']}{aim}"


def explanation(entry: Entry) -> str:
    """Return the reason why a result is invalid, and the next step."""
    return (
        f"invalid: {max(entry['cores_busy_before']):.2f} cores were busy with other work before a measurement, and at "
        f"most {limit(entry['machine']['cores']):g} may be. Measure it again on an idle machine"
    )


def command() -> str:
    """Return the command line of this process, relative to the checkout."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = f"-m {spec.name.removesuffix('.__main__')}" if spec else Path(sys.argv[0]).name
    return " ".join(["python", name, *sys.argv[1:]])


def commit() -> str:
    """Return RLRUN_COMMIT if it is set, as in an image without git. Otherwise return the checkout's commit, with
    `-dirty` if files differ.
    """
    if os.environ.get("RLRUN_COMMIT"):
        return os.environ["RLRUN_COMMIT"]
    return _git("rev-parse", "HEAD") + ("-dirty" if _git("status", "--porcelain") else "")


def _git(*args: str) -> str:
    try:
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


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
