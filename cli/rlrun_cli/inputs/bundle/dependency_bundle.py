"""Wheels of the requirements that the environment image lacks, as pip resolves and downloads them.

pip resolves for the image's platform and Python, with the packages of the image as constraints. It gets an empty wheel
in place of each of these packages, so it downloads none of them and follows no requirement of theirs. The extras of a
package are known from its real metadata only: a package with extras that a wheel asks for comes from the index, and
what they require is added. Wheels of the image's packages are never part of the bundle.

pip downloads for another platform only without source distributions. A requirement that only these meet is built, and
pip resolves again with its wheel.
"""

import contextlib
import hashlib
import importlib.util
import io
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from rlrun.api.base.names import package_name
from rlrun.constants import MAX_PACKAGE_BYTES, MAX_PACKAGE_FILES, MAX_UNPACKED_BYTES
from rlrun.storage.environment_image import MARKERS, ImagePackage

from rlrun_cli.inputs.bundle.pip_failures import SourceOnlyError, find_failure
from rlrun_cli.inputs.bundle.pip_run import run_pip
from rlrun_cli.inputs.bundle.pip_target import ABI, PLATFORMS, SKIP, TARGET, TARGET_OPTIONS
from rlrun_cli.inputs.bundle.source_builds import SourceBuilder
from rlrun_cli.inputs.requirements import conflicts, extended_packages, missing_packages, pinned_packages
from rlrun_cli.inputs.wheel_builder import Wheel, read_wheel
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError

RESOLVE_SECONDS = 1800.0
LARGEST = 5
"""Number of wheels that an error about their size names."""
STUB_BUILD = 999_999_999
"""Build number of the wheels in place of the image's packages: pip takes the greatest of a version and tag."""
MAX_LOG_BYTES = 64 * 1024**2
"""Bytes that are read of pip's log, which has a line for each file of the index."""


def is_complete(wheels: Sequence[Wheel]) -> bool:
    """Return whether the image and the wheels have all that the wheels require."""
    return not missing_packages(wheels) and not extended_packages(wheels)


def find_dependencies(
    wheels: Sequence[Wheel], seconds: float = RESOLVE_SECONDS, only_binary: Sequence[str] = ()
) -> list[Wheel]:
    """Return the wheels to add to these. The environment's package is the last one.

    pip uses its own settings for the index, and has `seconds`. `only_binary`: packages of which no source distribution
    may be built, as pip's option of this name. Raises CliError if the requirements contradict each other, the image or
    the wheels, or a wheel for the image cannot be found or built.
    """
    if problems := conflicts(wheels):
        raise CliError(
            "the requirements cannot be met in pods of the environment",
            f"{problems[0].hint}; {SKIP}",
            details=[problem.text for problem in problems],
        )
    if is_complete(wheels):
        return []
    if importlib.util.find_spec("pip") is None:
        raise CliError(
            f"this Python has no pip, which finds the required wheels: {sys.executable}",
            f"install it with `{sys.executable} -m ensurepip`; {SKIP}",
        )
    extended = extended_packages(wheels)
    wanted = ", ".join(sorted({*missing_packages(wheels), *(f"extras of {name}" for name in extended)}))
    output.notice(f"Looking for wheels that the environment image lacks ({TARGET}), with pip: {wanted}")
    with tempfile.TemporaryDirectory(prefix="rlrun-wheels-") as scratch:
        search = _Search(wheels, Path(scratch), seconds, only_binary)
        while True:
            found = search.download(extended)
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


class _Search:
    """Search for the wheels of one package, in a folder of its own."""

    def __init__(self, wheels: Sequence[Wheel], scratch: Path, seconds: float, only_binary: Sequence[str]) -> None:
        self._scratch = scratch
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        given, built = scratch / "given", scratch / "built"
        for folder in (given, built):
            folder.mkdir()
        for wheel in wheels:
            (given / wheel.file).write_bytes(wheel.data)
        self._given = [str(given / wheel.file) for wheel in wheels]
        self._own = {wheel.name for wheel in wheels}
        self._pins = {name: package for name, package in pinned_packages(wheels).items() if name not in self._own}
        self._constraints = scratch / "constraints.txt"
        self._constraints.write_text("".join(f"{p.name}=={p.version}\n" for p in self._pins.values()), encoding="utf-8")
        self._builder = SourceBuilder(built, self._deadline, only_binary)
        # pip runs the code of such a source distribution to read its metadata.
        for requirement in _addresses(wheels):
            self._check_source(requirement)

    def download(self, extended: set[str]) -> list[Wheel]:
        """Return the wheels of what is missing. `extended`: packages of the image whose real metadata pip reads."""
        while True:
            try:
                files = self._download(extended)
                break
            except SourceOnlyError as error:
                if not self._builder.may_build(error.requirement):
                    raise
                self._builder.build(error.requirement, self._constraints)
        files = [file for file in files if _project(file) not in {*self._own, *self._pins}]
        # Before they are read into memory.
        _check_bytes({file.name: file.stat().st_size for file in files})
        return [read_wheel(self._wheel(file)) for file in files]

    def _download(self, extended: set[str]) -> list[Path]:
        folder = Path(tempfile.mkdtemp(prefix="search-", dir=self._scratch))
        found, stubs, log = folder / "found", folder / "image", folder / "log"
        for each in (found, stubs):
            each.mkdir()
        for name in self._pins.keys() - extended:
            _write_stub(self._pins[name], stubs)
        options = ["--only-binary=:all:", *TARGET_OPTIONS, f"--find-links={stubs}"]
        options += [f"--find-links={self._builder.folder}", f"--constraint={self._constraints}", f"--dest={found}"]
        result = run_pip(
            ["download", *options, f"--log={log}", "--progress-bar=off", *self._given],
            max(0.0, self._deadline - time.monotonic()),
            markers=MARKERS,
            shows_downloads=True,
        )
        if result.status is None:
            raise CliError(
                f"pip did not find the required wheels within {self._seconds:.0f} s",
                f"narrow the versions in the requirements, or name wheels with --include; {SKIP}",
                details=result.last_lines,
            )
        if result.status:
            raise find_failure(result, _read_log(log), self._pins)
        return sorted(found.iterdir())

    def _wheel(self, file: Path) -> Path:
        """Return the wheel of a file that pip brought: a requirement may have the address of a source distribution."""
        if file.suffix == ".whl":
            return file
        requirement = Requirement(_project(file))
        self._check_source(requirement)
        return self._builder.build_file(file, requirement.name)

    def _check_source(self, requirement: Requirement) -> None:
        if not self._builder.may_build(requirement):
            raise SourceOnlyError(requirement, "ADDRESS")
        self._builder.announce(requirement)


def _addresses(wheels: Sequence[Wheel]) -> Iterator[Requirement]:
    """Yield the requirements that have the address of a source distribution."""
    for text in (text for wheel in wheels for text in wheel.requires):
        with contextlib.suppress(InvalidRequirement):
            requirement = Requirement(text)
            if requirement.url is not None and not urlsplit(requirement.url).path.endswith(".whl"):
                yield requirement


def _read_log(log: Path) -> str:
    if not log.is_file():
        return ""
    with log.open("rb") as opened:
        return opened.read(MAX_LOG_BYTES).decode(errors="replace")


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
