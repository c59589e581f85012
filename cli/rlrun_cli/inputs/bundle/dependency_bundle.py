"""Finds wheels for requirements that the environment image lacks: uv resolves them, pip downloads them.

uv resolves for the image's platform and Python as `pip install` would there, including source distributions. Each
package in the image is represented by an empty wheel of the same version, so that uv does not resolve the package's
requirements. Empty wheels declare no extras. If a wheel requires extras of a package in the image, uv therefore reads
that package from the index and resolves the requirements of the extras. Wheels for packages in the image are never part
of the bundle. pip downloads the files in uv's lock and verifies their hashes.

A source distribution is built on this machine, and the build runs the distribution's code. The wheel is used only if
its tag allows any platform, because wheels for one platform may depend on this machine.
"""

import hashlib
import importlib.util
import io
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uv
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version
from rlrun.api.base.names import package_name
from rlrun.constants import MAX_PACKAGE_BYTES, MAX_PACKAGE_FILES, MAX_UNPACKED_BYTES
from rlrun.storage.environment_image import NEWEST_GLIBC, PLATFORMS, PYTHONS, ImagePackage, image_tags

from rlrun_cli.inputs.bundle.package_tools import PIP, ToolResult, read_settings, run_tool
from rlrun_cli.inputs.package_generation import python_of
from rlrun_cli.inputs.requirements import (
    conflicts,
    extended_packages,
    missing_packages,
    pinned_packages,
    wanted_versions,
)
from rlrun_cli.inputs.wheel_builder import Wheel, read_wheel
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError

RESOLVE_SECONDS = 1800.0
LARGEST = 5
"""Number of wheels, the largest first, that an error about a limit lists."""
OTHER_PYTHON = re.compile(r"Python ?>=")
"""Matches uv's output about versions that need a newer Python than the one for which uv resolves."""
SKIP = "--no-deps pushes without these wheels"


def is_complete(wheels: Sequence[Wheel]) -> bool:
    """Return True if all required packages are in the image or among the wheels, and no wheel requires extras of a
    package in the image. Does not compare versions, as `conflicts` does.
    """
    return not missing_packages(wheels) and not extended_packages(wheels)


def find_dependencies(
    wheels: Sequence[Wheel], seconds: float = RESOLVE_SECONDS, only_binary: Sequence[str] = ()
) -> list[Wheel]:
    """Return wheels for the dependencies that neither `wheels` nor the image contains.

    The last of `wheels` is the environment's package. uv and pip use pip's index settings and together run for at most
    `seconds`. `only_binary` lists packages whose source distributions must not be built, as in pip's option. Prints a
    warning for each version below the newest one that the requirements allow. Raises CliError if requirements conflict
    with each other, the image or the wheels, if a wheel can be neither found nor built, if the wheels are too large, or
    if time runs out.
    """
    if problems := conflicts(wheels):
        raise CliError(
            "the requirements cannot be satisfied in environment pods",
            f"{problems[0].hint}; {SKIP}",
            details=[problem.text for problem in problems],
        )
    if is_complete(wheels):
        return []
    if importlib.util.find_spec("pip") is None:
        raise CliError(
            f"this Python has no pip, which is needed to download wheels: {sys.executable}",
            f"install it with `{sys.executable} -m ensurepip`; {SKIP}",
        )
    extended, target = extended_packages(wheels), _target(wheels)
    wanted = ", ".join(sorted({*missing_packages(wheels), *(f"extras of {name}" for name in extended)}))
    output.notice(
        f"Looking for wheels that the environment image lacks ({target}): {wanted}. Source distributions are built, "
        "which runs their code on this machine, as with `pip install` (--only-binary disables this)"
    )
    with tempfile.TemporaryDirectory(prefix="rlrun-wheels-") as scratch:
        search = _Search(wheels, Path(scratch), seconds, only_binary)
        while True:
            found = search.download(extended)
            # A wheel that was just found may also require extras of a package of the image.
            more = extended_packages([*found, *wheels])
            if more <= extended:
                break
            extended |= more
        if left := missing_packages([*found, *wheels]):
            raise CliError(f"uv found no wheel for {', '.join(left)}", f"pass wheels with --include; {SKIP}")
        for remark in search.compare_with_newest(found):
            output.notice(remark)
    return found


def _target(wheels: Sequence[Wheel]) -> str:
    return f"Linux x86_64, Python {python_of(wheels)}"


def describe(wheel: Wheel) -> str:
    """Return the name, version, file, size and hash of a wheel."""
    digest = hashlib.sha256(wheel.data).hexdigest()
    return f"{wheel.name} {wheel.version}: {wheel.file} ({output.size(len(wheel.data))}, sha256:{digest})"


def check_size(wheels: Sequence[Wheel]) -> None:
    """Raise CliError if the wheels exceed a limit: their size, their unpacked size, or their number of files."""
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
    _check_limit("take up", sizes, MAX_PACKAGE_BYTES, output.size)


def _check_limit(verb: str, counts: Mapping[str, int], limit: int, show: Callable[[int], str]) -> None:
    total = sum(counts.values())
    if total > limit:
        largest = sorted(counts, key=lambda file: counts[file], reverse=True)[:LARGEST]
        raise CliError(
            f"the wheels of the package {verb} {show(total)}; the limit is {show(limit)}",
            "require smaller packages, or load large data in load_environment() instead of packing it",
            details=[f"{file}: {show(counts[file])}" for file in largest],
        )


class _Search:
    """Search for the wheels that one environment package needs, with a folder for temporary files."""

    def __init__(self, wheels: Sequence[Wheel], scratch: Path, seconds: float, only_binary: Sequence[str]) -> None:
        self._scratch = scratch
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._settings = read_settings()
        self._binary = [f"--only-binary={name}" for name in ",".join(only_binary).split(",") if name]
        self._wheels = wheels
        self._python, self._target = python_of(wheels), _target(wheels)
        given = self._folder()
        for wheel in wheels:
            (given / wheel.file).write_bytes(wheel.data)
        self._given = [f"{wheel.name} @ {(given / wheel.file).as_uri()}" for wheel in wheels]
        own = {wheel.name for wheel in wheels}
        self._pins = {name: package for name, package in pinned_packages(wheels).items() if name not in own}
        self._present = {*own, *self._pins}

    def download(self, extended: set[str]) -> list[Wheel]:
        """Download or build the missing wheels. `extended` lists packages in the image whose metadata uv reads from
        the index, because their extras are required.
        """
        stubs = self._folder()
        pins = [
            f"{name}=={pin.version}" if name in extended else f"{name} @ {_write_stub(pin, stubs).as_uri()}"
            for name, pin in self._pins.items()
        ]
        locked = [line for line in self._lock(self._given, pins) if _name(line) not in self._present]
        found = self._folder()
        # A repository URL has no hash, and pip compares the hashes of all lines or of none.
        for lines in (
            [line for line in locked if "--hash=" in line],
            [line for line in locked if "--hash=" not in line],
        ):
            if lines:
                target = ["--implementation=cp", f"--abi={self._python.abi}"]
                target += [f"--python-version={self._python.full_version}"]
                target += [f"--platform={platform}" for platform in PLATFORMS]
                wanted = ["--requirement", str(self._write(lines)), *self._binary]
                self._run("download the wheels", [*PIP, "download", "--no-deps", *target, *wanted, f"--dest={found}"])
        # Check the size before the files are read into memory.
        _check_bytes({file.name: file.stat().st_size for file in found.iterdir()})
        return [read_wheel(file if file.suffix == ".whl" else self._build(file)) for file in sorted(found.iterdir())]

    def compare_with_newest(self, found: Sequence[Wheel]) -> list[str]:
        """Return a warning for each version below the newest one that the wheels' requirements allow, or one notice if
        the newest versions cannot be resolved.
        """
        wanted = wanted_versions([*found, *self._wheels])
        lines = [f"{wheel.name}{wanted[wheel.name]}" for wheel in found if wanted.get(wheel.name) is not None]
        try:
            locked = self._lock(lines, [], "--no-deps")
        except CliError as problem:
            return [f"The newest versions could not be compared: {problem.message}"]
        newest = {_name(line): Version(line.split()[0].partition("==")[2]) for line in locked}
        return [
            f"Warning: {wheel.name} {wheel.version} is older than {newest[wheel.name]}. The requirements allow "
            f"{newest[wheel.name]}, but it conflicts with the environment image or the other wheels. Require "
            f"{wheel.name}>={newest[wheel.name]} to see the conflict"
            for wheel in found
            if wheel.name in newest and newest[wheel.name] > Version(wheel.version)
        ]

    def _lock(self, lines: Sequence[str], constraints: Sequence[str], *options: str) -> list[str]:
        """Return the lines of uv's lock, one per package with its hashes."""
        lock = self._folder() / "lock.txt"
        command = [uv.find_uv_bin(), "pip", "compile", "--no-config", "--no-progress", "--quiet", "--generate-hashes"]
        command += ["--no-header", "--no-annotate", "--no-python-downloads", f"--python={sys.executable}"]
        command += [f"--python-version={self._python.full_version}"]
        command += [f"--python-platform=x86_64-manylinux_2_{NEWEST_GLIBC}", f"--output-file={lock}"]
        command += [*self._settings.options, *self._binary, *options]
        self._run(
            f"resolve the requirements for the environment image ({self._target})",
            [*command, f"--constraints={self._write(constraints)}", str(self._write(lines))],
        )
        return lock.read_text(encoding="utf-8").replace("\\\n", "").splitlines()

    def _build(self, source: Path) -> Path:
        """Build a wheel from a source distribution. Raises CliError if the wheel is for one platform only."""
        built = self._folder()
        # The Python on this machine, which runs the build, may be one that the package does not support.
        self._run(
            f"build {source.name}, which is available only as a source distribution",
            [*PIP, "wheel", "--no-deps", "--ignore-requires-python", f"--wheel-dir={built}", str(source)],
        )
        (wheel,) = built.iterdir()
        name, version, _, tags = parse_wheel_filename(wheel.name)
        if any(tag.platform == "any" for tag in tags & image_tags(self._python)):
            with source.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
            output.notice(f"Built {wheel.name} from {source.name} (sha256:{digest})")
            return wheel
        raise CliError(
            f"{source.name} is available only as a source distribution, and the built wheel is for one platform only: "
            f"{wheel.name}",
            f"build it on {self._target} or in the environment image, `pip wheel --no-deps {name}=={version}`, and "
            f"pass it with --include; {SKIP}",
        )

    def _run(self, what: str, command: Sequence[str]) -> None:
        seconds = max(0.0, self._deadline - time.monotonic())
        result = run_tool(command, seconds, variables=self._settings.variables, shows_downloads=True)
        tool = "pip" if command[: len(PIP)] == list(PIP) else "uv"
        if result.status is None:
            raise CliError(
                f"{tool} did not {what} within {self._seconds:.0f} s",
                f"narrow the required versions, or pass wheels with --include; {SKIP}",
                details=result.last_lines,
            )
        if result.status:
            raise CliError(
                f"{tool} could not {what}",
                "require versions that fit the image, correct pip's settings (`pip config list`), or pass wheels with "
                f"--include; {SKIP}",
                details=[*result.last_lines, *self._choices_in(result)],
            )

    def _choices_in(self, result: ToolResult) -> Iterator[str]:
        """Yield facts that explain the output: the Python version, and mentioned packages in the image and wheels."""
        text, environment = "\n".join(result.last_lines), self._wheels[-1].name
        if OTHER_PYTHON.search(text) and self._python != PYTHONS[-1]:
            yield (
                f"{environment} runs with Python {self._python}, because its requires-python allows that version; set "
                f'requires-python to ">={PYTHONS[-1]}" to run with Python {PYTHONS[-1]}'
            )
        words = {package_name(word) for word in re.findall(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)}
        for name in sorted(words & self._pins.keys()):
            yield f"the environment image has {name} {self._pins[name].version}"
        for wheel in self._wheels[:-1]:
            if wheel.name in words:
                yield f"the pushed wheel is {wheel.name} {wheel.version}"

    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def _write(self, lines: Sequence[str]) -> Path:
        file = self._folder() / "requirements.txt"
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return file


def _name(line: str) -> str:
    return package_name(Requirement(line.partition(" --hash=")[0].strip()).name)


def _write_stub(package: ImagePackage, folder: Path) -> Path:
    """Write an empty wheel with the name and version of a package in the image."""
    stem = f"{package.name.replace('-', '_')}-{package.version}"
    file = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in (
            ("METADATA", f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"{stem}.dist-info/{name}", text)
    return file
