"""Wheels of the requirements that the environment image lacks, as pip resolves and downloads them.

pip resolves for the image's platform and Python, with the packages of the image as constraints. It gets an empty wheel
in place of each of these packages, so it downloads none of them and follows no requirement of theirs. The extras of a
package are known from its real metadata only: a package with extras that a wheel asks for comes from the index, and
what they require is added. Wheels of the image's packages are never part of the bundle.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, parse_sdist_filename
from packaging.version import Version
from rlrun.api.base.names import package_name
from rlrun.constants import MAX_PACKAGE_BYTES, MAX_PACKAGE_FILES, MAX_UNPACKED_BYTES
from rlrun.storage.environment_image import MARKERS, PYTHON, ImagePackage

from rlrun_cli.inputs import pip_process
from rlrun_cli.inputs.requirements import conflicts, extended_packages, missing_packages, pinned_packages
from rlrun_cli.inputs.wheel_builder import Wheel, read_wheel
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS, CliError

PROGRAM = Path(pip_process.__file__)
"""Run by its path: it needs nothing of this package, which need not be on the path of a new process."""
RESOLVE_SECONDS = 1800.0
OUTPUT_LINES = 12
"""Number of pip's output lines that an error shows."""
LARGEST = 5
"""Number of wheels that an error about their size names."""
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)
"""Platforms whose wheels the image can load, the most specific first."""
ABI = f"cp{PYTHON.replace('.', '')}"
STUB_BUILD = 999_999_999
"""Build number of the wheels in place of the image's packages: pip takes the greatest of a version and tag."""
TARGET = f"Linux x86_64, Python {PYTHON}"
SKIP = "--no-deps pushes without these wheels"

CREDENTIALS = re.compile(r"://[^/\s@]*@")
QUERY = re.compile(r"(://[^\s?#]*)\?[^\s#)\]]*")
NOT_FOUND = re.compile(r"No matching distribution found for ([^(\n]+)")
DEPENDS = re.compile(r"(\S+) (\S+) depends on (.+)")
UNREACHABLE = re.compile(r"connection error|Retrying \(|Failed to connect|Connection to \S+ timed out")
SOURCE = re.compile(r"No sources permitted for ([^\s:]+): \S*/([^\s/#?]+)")
PROGRESS = ("Downloading ", "Using cached ")
CONFLICT = "The conflict is caused by:"
IN_IMAGE = re.compile(r"The user requested \(constraint\) ([A-Za-z0-9][A-Za-z0-9._-]*)==")
PUSHED = re.compile(r"The user requested ([A-Za-z0-9][A-Za-z0-9._-]*) (\S+) \(from ")


def is_complete(wheels: Sequence[Wheel]) -> bool:
    """Return whether the image and the wheels have all that the wheels require."""
    return not missing_packages(wheels) and not extended_packages(wheels)


def find_dependencies(wheels: Sequence[Wheel], seconds: float = RESOLVE_SECONDS) -> list[Wheel]:
    """Return the wheels to add to these. The environment's package is the last one.

    pip uses its own settings for the index, and has `seconds`. Raises CliError if the requirements contradict each
    other, the image or the wheels, or a wheel for the image cannot be found.
    """
    if problems := conflicts(wheels):
        raise CliError(
            "the requirements cannot be met in pods of the environment",
            f"{problems[0].hint}; {SKIP}",
            details=[problem.text for problem in problems],
        )
    if is_complete(wheels):
        return []
    extended = extended_packages(wheels)
    wanted = ", ".join(sorted({*missing_packages(wheels), *(f"extras of {name}" for name in extended)}))
    output.notice(f"Looking for wheels that the environment image lacks ({TARGET}), with pip: {wanted}")
    while True:
        found = _download(wheels, extended, seconds)
        # Also a wheel that was found may ask for extras of a package of the image.
        more = extended_packages([*found, *wheels])
        if more <= extended:
            break
        extended |= more
    if left := missing_packages([*found, *wheels]):
        raise CliError(
            f"pip brought no wheel of {', '.join(left)}",
            f"check pip's settings with `pip config list` (no-deps must be off), or name wheels with --include; {SKIP}",
        )
    return found


def describe(wheel: Wheel) -> str:
    """Return file, size and hash of a wheel."""
    return f"{wheel.file} ({output.size(len(wheel.data))}, sha256:{hashlib.sha256(wheel.data).hexdigest()})"


def check_size(wheels: Sequence[Wheel]) -> None:
    """Raise CliError if pods would refuse the wheels for their size."""
    entries = {}
    for wheel in wheels:
        with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
            entries[wheel.file] = archive.infolist()
    _check_bytes({wheel.file: len(wheel.data) for wheel in wheels})
    unpacked = {file: sum(entry.file_size for entry in listed) for file, listed in entries.items()}
    _check_limit("unpack to", unpacked, MAX_UNPACKED_BYTES, output.size)
    files = {file: len(listed) for file, listed in entries.items()}
    _check_limit("contain", files, MAX_PACKAGE_FILES, lambda count: f"{count:,} files")


def _check_bytes(sizes: Mapping[str, int]) -> None:
    _check_limit("have", sizes, MAX_PACKAGE_BYTES, output.size)


def _check_limit(verb: str, counts: Mapping[str, int], limit: int, show: Callable[[int], str]) -> None:
    total = sum(counts.values())
    if total > limit:
        largest = sorted(counts, key=lambda file: counts[file], reverse=True)[:LARGEST]
        raise CliError(
            f"the wheels of the package {verb} {show(total)}; {show(limit)} are allowed",
            "require smaller packages, or load large data in load_environment instead",
            details=[f"{file}: {show(counts[file])}" for file in largest],
        )


def _download(wheels: Sequence[Wheel], extended: set[str], seconds: float) -> list[Wheel]:
    if importlib.util.find_spec("pip") is None:
        raise CliError(
            f"this Python has no pip, which finds the required wheels: {sys.executable}",
            f"install it with `{sys.executable} -m ensurepip`; {SKIP}",
        )
    own = {wheel.name for wheel in wheels}
    pins = {name: package for name, package in pinned_packages(wheels).items() if name not in own}
    with tempfile.TemporaryDirectory(prefix="rlrun-wheels-") as scratch:
        given, found, stubs = (Path(scratch, name) for name in ("given", "found", "image"))
        for folder in (given, found, stubs):
            folder.mkdir()
        for wheel in wheels:
            (given / wheel.file).write_bytes(wheel.data)
        constraints, log = Path(scratch, "constraints.txt"), Path(scratch, "log")
        constraints.write_text("".join(f"{p.name}=={p.version}\n" for p in pins.values()), encoding="utf-8")
        for name in pins.keys() - extended:
            _write_stub(pins[name], stubs)
        options = ["--only-binary=:all:", "--implementation=cp", f"--abi={ABI}", f"--find-links={stubs}"]
        options += [f"--python-version={MARKERS['python_full_version']}"]
        options += [f"--platform={platform}" for platform in PLATFORMS]
        options += [f"--constraint={constraints}", f"--dest={found}", f"--log={log}", "--progress-bar=off"]
        status, lines = _run(["download", *options, *(str(given / wheel.file) for wheel in wheels)], seconds)
        if status is None:
            raise CliError(
                f"pip did not find the required wheels within {seconds:.0f} s",
                f"narrow the versions in the requirements, or name wheels with --include; {SKIP}",
                details=_last(lines),
            )
        if status:
            full = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            raise _failure(lines, full, pins)
        files = [file for file in sorted(found.iterdir()) if _project(file) not in {*own, *pins}]
        # A requirement with an address may be one of a source distribution.
        if sources := [file.name for file in files if file.suffix != ".whl"]:
            raise _source_only(sources[0], "ADDRESS", [])
        # Before they are read into memory.
        _check_bytes({file.name: file.stat().st_size for file in files})
        return [read_wheel(file) for file in files]


def _project(wheel: Path) -> str:
    return package_name(wheel.name.partition("-")[0])


def _write_stub(package: ImagePackage, folder: Path) -> None:
    """Write an empty wheel that pip prefers to all others of the version."""
    stem = f"{package.name.replace('-', '_')}-{package.version}"
    tag = f"{ABI}-{ABI}-{PLATFORMS[0]}"
    with zipfile.ZipFile(folder / f"{stem}-{STUB_BUILD}-{tag}.whl", "w") as archive:
        for name, text in (
            ("METADATA", f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"),
            ("WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nBuild: {STUB_BUILD}\nTag: {tag}\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"{stem}.dist-info/{name}", text)


def _run(arguments: Sequence[str], seconds: float) -> tuple[int | None, Sequence[str]]:
    """Return pip's exit status, None after `seconds`, and its last lines of output. Downloads are shown."""
    child = subprocess.Popen(
        # -P: modules in the current folder, the user's, must not hide those of pip.
        [sys.executable, "-P", str(PROGRAM), json.dumps(dict(MARKERS)), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PIP_NO_INPUT": "1", "PIP_NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        start_new_session=True,
    )
    late = threading.Event()

    def stop() -> None:
        late.set()
        _kill(child)

    timer = threading.Timer(seconds, stop)
    timer.start()
    lines = deque[str](maxlen=500)
    try:
        assert child.stdout is not None
        for raw in child.stdout:
            line = _printable(raw)
            lines.append(line)
            if line.strip().startswith(PROGRESS):
                output.notice(f"  {line.strip()}")
        status = child.wait()
    finally:
        timer.cancel()
        _kill(child)
        child.wait()
    return None if late.is_set() else status, lines


def _kill(child: subprocess.Popen[str]) -> None:
    # Also what pip has started, and after Ctrl-C.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _printable(line: str) -> str:
    """Return a line of pip without control characters, passwords and tokens in URLs."""
    text = line.rstrip().translate(CONTROL_CHARACTERS)
    return QUERY.sub(r"\1?****", CREDENTIALS.sub("://****@", text))


def _last(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if line.strip()][-OUTPUT_LINES:]


def _failure(lines: Sequence[str], log: str, pins: Mapping[str, ImagePackage]) -> CliError:
    """Return what made pip fail, with the next step."""
    sides = _conflict(lines)
    absent = _absent(lines, sides)
    sources = _sources(log, absent) if absent else []
    if absent and sources:
        return _source_only(absent.name, f"{absent.name}=={sources[-1]}", sides or _last(lines)[-2:])
    if sides and absent is None:
        return CliError(
            "the requirements contradict each other or the environment image",
            "require versions that fit: a pushed wheel does not replace a package of the image. "
            f"Or name a wheel that fits with --include; {SKIP}",
            details=[_side(side, pins) for side in sides],
        )
    if UNREACHABLE.search(log):
        return CliError(
            "pip could not reach a package index",
            f"check its settings with `pip config list`, or name wheels with --include; {SKIP}",
            details=_last(lines),
        )
    return CliError(
        f"pip found no wheel of {absent} for the environment image ({TARGET})" if absent else "pip failed",
        f"correct the requirement or pip's settings (`pip config list`), or name wheels with --include; {SKIP}",
        details=sides or _last(lines),
    )


def _source_only(name: str, build: str, details: list[str]) -> CliError:
    return CliError(
        f"{name} is a source distribution only: no wheel fits the environment image ({TARGET})",
        f"build one on such a machine, `pip wheel --no-deps {build}`, and name it with --include",
        details=details,
    )


def _sources(log: str, wanted: Requirement) -> list[Version]:
    """Return the versions of a requirement's source distributions, which pip skipped."""
    found = set()
    for match in SOURCE.finditer(log):
        if package_name(match[1]) == package_name(wanted.name):
            with contextlib.suppress(InvalidSdistFilename):
                found.add(parse_sdist_filename(match[2])[1])
    return sorted(version for version in found if wanted.specifier.contains(version, prereleases=True))


def _absent(lines: Sequence[str], sides: Sequence[str]) -> Requirement | None:
    """Return the requirement of which pip has no wheel, None if packages contradict each other."""
    if not sides:
        text = next((match[1] for line in reversed(lines) if (match := NOT_FOUND.search(line))), None)
        return _parse(text) if text else None
    needed = [DEPENDS.fullmatch(side) for side in sides]
    wanted = [_parse(match[3]) for match in needed if match]
    # Versions of one package want versions of another one: nothing is against these.
    if len({match and package_name(match[1]) for match in needed}) == 1 and len(wanted) == len(sides):
        names = {each and package_name(each.name) for each in wanted}
        return wanted[0] if len(names) == 1 else None
    return None


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _conflict(lines: Sequence[str]) -> list[str]:
    """Return the requirements that conflict, in pip's words. Of each package only the first version is shown."""
    text = list(lines)
    start = next((number for number, line in enumerate(text) if CONFLICT in line), None)
    if start is None:
        return []
    sides: dict[object, str] = {}
    for line in text[start + 1 :]:
        if not line.startswith("    "):
            break
        match = DEPENDS.fullmatch(line.strip())
        sides.setdefault((match[1], match[3]) if match else line, line.strip())
    return list(sides.values())


def _side(line: str, pins: Mapping[str, ImagePackage]) -> str:
    if (match := IN_IMAGE.match(line)) and (package := pins.get(package_name(match[1]))):
        return f"the environment image has {package.name} {package.version}"
    if match := PUSHED.match(line):
        return f"{match[1]} {match[2]} is pushed"
    return line
