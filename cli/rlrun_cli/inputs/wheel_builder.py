"""An environment package: a Python project on disk, built into a wheel.

The wheel is built in this very Python when what the project needs for building is installed here (no network needed),
and in an isolated environment otherwise. Two wheels are the same package when the files in them are: a wheel's own
bytes also hold times and an order of files, which say nothing.
"""

import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from rlrun_cli.terminal.errors import INVALID, CliError

OWNER = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
BUILD_SECONDS = 600
LOG_LINES = 15
"""Last lines of a failed build to show."""


@dataclass(frozen=True)
class Wheel:
    """A built wheel."""

    file: str
    data: bytes
    name: str
    """Project name, lower case with dashes: the name in `owner/name`."""
    version: str
    requires: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over the names and contents of the packed files."""
        return content_digest(self.data)


def content_digest(data: bytes) -> str:
    """SHA-256 over names and contents of the files in a wheel. Raises zipfile.BadZipFile."""
    whole = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".dist-info/RECORD"):  # follows from the other files; its order of lines is free
                continue
            whole.update(f"{name}\0{hashlib.sha256(archive.read(name)).hexdigest()}\n".encode())
    return whole.hexdigest()


def read_wheel(path: Path) -> Wheel:
    """A wheel file with its name and version. Raises CliError when it is not one."""
    try:
        data = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            metadata = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
            headers = HeaderParser().parsestr(archive.read(metadata).decode())
    except (OSError, zipfile.BadZipFile, StopIteration) as problem:
        raise CliError(f"{path} is not a wheel", "give a .whl file as pip makes it", code=INVALID) from problem
    name = re.sub(r"[-_.]+", "-", headers["Name"]).lower()
    return Wheel(path.name, data, name, headers["Version"], tuple(headers.get_all("Requires-Dist") or ()))


def read_project(folder: Path) -> dict[str, Any]:
    """The pyproject.toml of a folder. Raises CliError when there is none or it cannot be read."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        raise CliError(
            f"{folder} has no pyproject.toml, so it is no environment package",
            "give the folder of a Python project whose module has load_environment()",
            code=INVALID,
        )
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise CliError(f"{file} is not valid TOML: {problem}", code=INVALID) from problem


def owner_of(project: Mapping[str, Any], option: str | None) -> str:
    """The owner part of the id. Raises CliError when there is none or it cannot be part of an id."""
    owner = option or project.get("tool", {}).get("rlrun", {}).get("owner")
    if not owner:
        raise CliError(
            "the package has no owner",
            'give --owner NAME, or write [tool.rlrun] owner = "NAME" in its pyproject.toml',
            code=INVALID,
        )
    if not isinstance(owner, str) or not OWNER.fullmatch(owner):
        raise CliError(
            f"{owner!r} cannot be an owner",
            "use lower-case letters, digits, '-', '_' and '.', with a letter or digit at both ends",
            code=INVALID,
        )
    return owner


class _BuildLog:
    """Runs build steps quietly and keeps what they said."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(
        self, cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None
    ) -> None:
        done = subprocess.run(
            list(cmd),
            cwd=cwd,
            env={**os.environ, **(extra_environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_SECONDS,
            check=False,
        )
        self.text += done.stdout
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, list(cmd))


def build_wheel(folder: Path) -> Wheel:
    """Build the project. Raises CliError with the end of the build's output."""
    import build
    import build.env

    failures = (build.BuildException, build.BuildBackendException, build.FailedProcessError)
    log = _BuildLog()
    with tempfile.TemporaryDirectory(prefix="rlrun-build-") as target:
        try:
            builder = build.ProjectBuilder(folder, python_executable=sys.executable, runner=log)
            missing = [d for need in builder.build_system_requires for d in build.check_dependency(need)]
            if missing:
                with build.env.DefaultIsolatedEnv() as env:
                    env.install(builder.build_system_requires)
                    builder = build.ProjectBuilder.from_isolated_env(env, folder, runner=log)
                    env.install(builder.get_requires_for_build("wheel"))
                    return read_wheel(Path(builder.build("wheel", target)))
            return read_wheel(Path(builder.build("wheel", target)))
        except (*failures, subprocess.SubprocessError, OSError) as problem:
            said = [line for line in log.text.splitlines() if line.strip()][-LOG_LINES:]
            raise CliError(
                f"the wheel of {folder} cannot be built: {problem}",
                "see that `python -m build --wheel` works in that folder",
                details=said,
            ) from problem
