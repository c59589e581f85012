"""Wheels built on this machine from source distributions, as `pip install` would.

A build runs the code of the source distribution with the user's rights and Python. Its wheel is used only if its tag
fits any platform; only that says that it does not depend on the machine.
"""

import hashlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags
from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import PYTHON

from rlrun_cli.inputs.bundle.pip_failures import NOT_FOUND, SourceOnlyError
from rlrun_cli.inputs.bundle.pip_run import PipResult, run_pip
from rlrun_cli.inputs.bundle.pip_target import ABI, SKIP, TARGET, TARGET_OPTIONS
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError

MAX_BUILDS = 20
ANY_PLATFORM = frozenset(
    tag
    for tag in compatible_tags((int(PYTHON.partition(".")[0]), int(PYTHON.partition(".")[2])), ABI)
    if tag.platform == "any"
)


class SourceBuilder:
    """Builder of the wheels of one package, all within one deadline."""

    def __init__(self, folder: Path, deadline: float, only_binary: Sequence[str]) -> None:
        """`deadline` is of the monotonic clock. `only_binary`: values of pip's option of this name: names of packages,
        `:all:` and `:none:`, separated by commas.
        """
        self.folder = folder
        """Folder with the wheels."""
        self._deadline = deadline
        self._forbidden = _forbidden_names(only_binary)
        self._built = set[str]()
        self._announced = set[str]()

    def may_build(self, requirement: Requirement) -> bool:
        """Return whether the package's source distributions may be built: once for a requirement, and not too many."""
        is_forbidden = bool(self._forbidden & {":all:", package_name(requirement.name)})
        return not is_forbidden and str(requirement) not in self._built and len(self._built) < MAX_BUILDS

    def announce(self, requirement: Requirement) -> None:
        """Tell the user that code of the package runs here, once for each package."""
        name = package_name(requirement.name)
        if name not in self._announced:
            self._announced.add(name)
            output.notice(
                f"Building a wheel of {name}{requirement.specifier}, which is a source distribution only: its code "
                f"runs on this machine, as with `pip install` (--only-binary={name} forbids it)"
            )

    def build(self, requirement: Requirement, constraints: Path) -> None:
        """Add a wheel of the version that pip chooses for the image's Python. Raises CliError."""
        self._built.add(str(requirement))
        name = requirement.name
        self.announce(requirement)
        with tempfile.TemporaryDirectory(prefix="source-", dir=self.folder.parent) as scratch:
            options = ["--no-deps", *TARGET_OPTIONS, f"--constraint={constraints}", f"--dest={scratch}"]
            wanted = f"{name}{requirement.specifier}"
            result = self._run("download", *options, wanted)
            if result.status:
                if any(NOT_FOUND.search(line) for line in result.lines):
                    # pip's own settings may forbid it: PIP_ONLY_BINARY.
                    raise SourceOnlyError(requirement, wanted, result.last_lines)
                raise _build_failed(name, wanted, result)
            (source,) = Path(scratch).iterdir()
            self.build_file(source, name)

    def build_file(self, source: Path, name: str) -> Path:
        """Return the wheel of a source distribution, which is in `folder` as well. Raises CliError."""
        digest = _sha256(source)
        with tempfile.TemporaryDirectory(prefix="wheel-", dir=self.folder.parent) as scratch:
            # The Python of this machine, which builds it, need not be one that it is for.
            result = self._run("wheel", "--no-deps", "--ignore-requires-python", f"--wheel-dir={scratch}", str(source))
            if result.status:
                raise _build_failed(name, source.name, result)
            (wheel,) = Path(scratch).iterdir()
            if not (tags := _tags(wheel)) & ANY_PLATFORM:
                raise CliError(
                    f"{source.name} builds to a wheel for one platform only, {'.'.join(sorted(map(str, tags)))}",
                    f"build it on {TARGET} or in the environment image, `pip wheel --no-deps "
                    f"{_pin(source, name)}`, and name it with --include; {SKIP}",
                )
            output.notice(f"Built {wheel.name} from {source.name} (sha256:{digest})")
            return wheel.replace(self.folder / wheel.name)

    def _run(self, command: str, *arguments: str) -> PipResult:
        result = run_pip([command, "--progress-bar=off", *arguments], max(0.0, self._deadline - time.monotonic()))
        if result.status is None:
            raise CliError(
                f"pip did not build {Path(arguments[-1]).name} in time",
                f"build its wheel yourself, `pip wheel --no-deps`, and name it with --include; {SKIP}",
                details=result.last_lines,
            )
        return result


def _forbidden_names(only_binary: Sequence[str]) -> set[str]:
    names = set[str]()
    for value in ",".join(only_binary).split(","):
        if value == ":none:":
            names.clear()
        elif value:
            names.add(value if value == ":all:" else package_name(value))
    return names


def _build_failed(name: str, what: str, result: PipResult) -> CliError:
    return CliError(
        f"{name} is a source distribution only, and pip could not build {what}",
        f"make `pip wheel --no-deps {name}` work, or name a wheel of it with --include; {SKIP}",
        details=result.last_lines,
    )


def _pin(source: Path, name: str) -> str:
    """Return the requirement that has the version of a source distribution."""
    try:
        return f"{name}=={parse_sdist_filename(source.name)[1]}"
    except InvalidSdistFilename:
        return name


def _tags(wheel: Path) -> frozenset[Tag]:
    try:
        return parse_wheel_filename(wheel.name)[3]
    except InvalidWheelFilename:
        return frozenset()


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
