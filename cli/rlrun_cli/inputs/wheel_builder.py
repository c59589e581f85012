"""Builds a wheel from a Python project on disk.

The build uses the current Python if the project's build requirements are installed there, which needs no network, and
otherwise an isolated environment. Wheels are compared by their files, because the bytes of a wheel also depend on
timestamps and on the order of the files.
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

from rlrun.api.base.names import package_name

from rlrun_cli.terminal.errors import INVALID, CliError

OWNER = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
BUILD_SECONDS = 600
MAX_METADATA_BYTES = 8 * 1024**2
LOG_LINES = 15
"""Number of output lines shown for a failed build."""


@dataclass(frozen=True)
class Wheel:
    """A built wheel."""

    file: str
    data: bytes
    name: str
    """Normalized project name: lower case with dashes, as in `owner/name`."""
    version: str
    requires: tuple[str, ...] = ()
    requires_python: str = ""
    """Supported Python versions. Empty means all."""

    @property
    def digest(self) -> str:
        """SHA-256 of the names and contents of the files in the wheel."""
        return content_digest(self.data)


def unpack(wheels: Sequence[Wheel], folder: Path) -> None:
    """Unpack the wheels into the folder."""
    for wheel in wheels:
        with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
            archive.extractall(folder)


def content_digest(data: bytes) -> str:
    """Return the SHA-256 of the names and contents of a wheel's files, except RECORD. Raises zipfile.BadZipFile."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".dist-info/RECORD"):  # derived from the other files, in arbitrary order
                continue
            with archive.open(name) as file:
                # A file may expand to gigabytes.
                content = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # it has readinto
            digest.update(f"{name}\0{content.hexdigest()}\n".encode())
    return digest.hexdigest()


def read_wheel(path: Path) -> Wheel:
    """Read a wheel, including its name and version. Raises CliError if the file is not a wheel."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise _not_a_wheel(path) from problem
    return parse_wheel(path, data)


def parse_wheel(path: Path, data: bytes) -> Wheel:
    """Parse a wheel, including its name and version. Raises CliError if the data is not a wheel."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            metadata = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
            if archive.getinfo(metadata).file_size > MAX_METADATA_BYTES:
                raise ValueError("METADATA is too large")
            headers = HeaderParser().parsestr(archive.read(metadata).decode())
            name, version = headers["Name"], headers["Version"]
            if not name or not version:
                raise ValueError("METADATA lacks a name or version")
    except (zipfile.BadZipFile, StopIteration, ValueError) as problem:
        raise _not_a_wheel(path) from problem
    return Wheel(
        path.name,
        data,
        package_name(name),
        version,
        tuple(headers.get_all("Requires-Dist") or ()),
        headers["Requires-Python"] or "",
    )


def _not_a_wheel(path: Path) -> CliError:
    return CliError(f"{path} is not a wheel", "pass a .whl file as built by `python -m build`", code=INVALID)


def read_project(folder: Path) -> dict[str, Any]:
    """Read the pyproject.toml of a folder. Raises CliError if it is missing or invalid."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        raise CliError(
            f"{folder} is not an environment package: it has no pyproject.toml",
            "pass the folder of a Python project whose module defines load_environment()",
            code=INVALID,
        )
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise CliError(f"{file} is not valid TOML: {problem}", "fix the syntax", code=INVALID) from problem


def project_name(project: Mapping[str, Any]) -> str:
    """Return the name in the `project` table, or an empty string if the build backend determines the name."""
    table = project.get("project")
    name = table.get("name") if isinstance(table, dict) else None
    return name if isinstance(name, str) else ""


def package_owner(project: Mapping[str, Any], option: str | None) -> str:
    """Return the owner from the option, else from the project. Raises CliError if the owner is missing or invalid."""
    owner = option or project.get("tool", {}).get("rlrun", {}).get("owner")
    if not owner:
        raise CliError(
            "the package has no owner",
            'add --owner NAME, or write [tool.rlrun] owner = "NAME" in its pyproject.toml',
            code=INVALID,
        )
    if not isinstance(owner, str) or not OWNER.fullmatch(owner):
        raise CliError(
            f"{owner!r} is not a valid owner",
            "use lower-case letters, digits, '-', '_' and '.'; begin and end with a letter or digit",
            code=INVALID,
        )
    return owner


class _BuildLog:
    """Runs build steps and collects their output."""

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
    """Build a wheel from the project in `folder`.

    Raises CliError with the last lines of output if a build step fails or takes longer than BUILD_SECONDS.
    """
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
            output = [line for line in log.text.splitlines() if line.strip()][-LOG_LINES:]
            raise CliError(
                f"the wheel of {folder} could not be built: {problem}",
                "fix the project until `python -m build --wheel` works in that folder",
                details=output,
            ) from problem
