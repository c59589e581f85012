"""Command `env install`: installs an environment package into a local Python environment."""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uv
from rlrun.api.base.names import package_name, split_version
from rlrun.constants import MAX_PACKAGE_BYTES
from rlrun.storage.layout import environment_package
from rlrun.storage.package_versions import matching, newest

from rlrun_cli.commands.environments.environment_projects import read_versions
from rlrun_cli.inputs.bundle.package_tools import ToolResult, read_settings, run_tool
from rlrun_cli.inputs.requirements import addressed_packages
from rlrun_cli.inputs.wheel_builder import OWNER, read_project, read_wheel
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_storage import open_user_storage, s3_operation
from rlrun_cli.remote.server import Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

INSTALL_ENVIRONMENT_EPILOG = """Examples:

  rlrun env install me/reverse-text
  rlrun env install me/reverse-text@0.2.0 --python .venv/bin/python
  rlrun env install .

OWNER/NAME is a pushed package, by default its newest version. Its wheels are downloaded and take precedence over your \
index (PIP_INDEX_URL, pip.conf). The index provides all other requirements, and replaces pushed wheels that do not fit \
this Python or platform, with a warning. DIR is a local project, which is installed in editable mode.

uv installs into the active virtual environment, or else into the Python that runs rlrun; --python selects another. \
The package's code runs with your rights when it is imported. Runs do not use this copy."""
INSTALL_SECONDS = 1800.0
UNRESOLVED = 1
"""Exit status of uv if no versions satisfy the requirements."""


@with_cluster
def install_environment(
    ctx: typer.Context,
    api: RemoteCluster,
    package: Annotated[
        str, typer.Argument(metavar="OWNER/NAME[@VERSION]|DIR", help="Pushed package, or folder of a Python project.")
    ],
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Python to install into. Default: the Python of the active virtual environment."
        ),
    ] = None,
    server: Server = None,
) -> None:
    """Install an environment package into a local Python environment."""
    target = python or _active_python()
    if Path(package).is_dir():
        read_project(Path(package))
        _install(["--editable", package], target)
        return
    identifier, version = split_version(package)
    owner, slash, name = identifier.partition("/")
    if not slash or not OWNER.fullmatch(owner) or not OWNER.fullmatch(package_name(name)):
        raise CliError(
            f"{package!r} is neither a folder nor a package id",
            "write OWNER/NAME, OWNER/NAME@VERSION or DIR",
            code=INVALID,
        )
    with tempfile.TemporaryDirectory(prefix="rlrun-install-") as scratch:
        own, *others = _download(ctx, api, server, (owner, name, version), Path(scratch))
        wheels = [own, *(wheel for wheel in others if _fits(wheel, target))]
        _install([*map(str, wheels), *_overrides(wheels, Path(scratch))], target)


def _active_python() -> Path:
    active = os.environ.get("VIRTUAL_ENV")
    return Path(active, "bin", "python") if active else Path(sys.executable)


def _download(
    ctx: typer.Context, api: RemoteCluster, server: str | None, package: tuple[str, str, str | None], folder: Path
) -> list[Path]:
    """Download the wheels of a version and return their paths, the package's own first. Raises CliError."""
    owner, name, wanted = package
    identifier = f"{owner}/{name}"
    with s3_operation(f"install {identifier}"):
        storage = open_user_storage(ctx, api, server)
        versions = read_versions(storage.store, storage.bucket, storage.prefix, owner, name)
        version = matching(wanted, versions) if wanted else newest(versions)
        if version is None:
            known = (
                f"select one of: {', '.join(versions)}" if versions else f"push it: rlrun env push DIR --owner {owner}"
            )
            raise NotFoundError(f"{identifier}{f' {wanted}' if wanted else ''} has not been pushed", known)
        files = [(file, size) for file, size in versions[version] if "/" not in file]
        own = next((file for file, _ in files if package_name(file.partition("-")[0]) == package_name(name)), None)
        if own is None or sum(size for _, size in files) > MAX_PACKAGE_BYTES:
            raise CliError(f"the files of {identifier} {version} are not a valid package", "push it again")
        source = environment_package(storage.bucket, storage.prefix, owner, name) / version
        for file, _ in files:
            (folder / file).write_bytes(storage.store.get_bytes(source / file))
    output.notice(f"Downloaded {identifier} {version}")
    return [folder / own, *(folder / file for file, _ in files if file != own)]


def _fits(wheel: Path, python: Path) -> bool:
    """Return whether the wheel fits the Python. Prints a warning if not. Raises CliError if uv fails otherwise."""
    result = _run(["--dry-run", "--no-deps", "--no-index", str(wheel)], python)
    if result.status == UNRESOLVED:
        output.notice(f"Warning: {wheel.name} does not fit {python}; the package is installed from your index instead")
    elif result.status != 0:
        raise _failure(result, python)
    return result.status == 0


def _overrides(wheels: Sequence[Path], folder: Path) -> list[str]:
    """Return the uv options with which requirements by URL use the downloaded wheels for the same packages."""
    read = [read_wheel(wheel) for wheel in wheels]
    # uv rejects a package with two URLs. Only such packages are overridden, because an override drops the requirement's
    # extras.
    addressed = addressed_packages(read)
    file = folder / "overrides.txt"
    lines = [f"{wheel.name} @ {(folder / wheel.file).as_uri()}\n" for wheel in read if wheel.name in addressed]
    file.write_text("".join(lines), encoding="utf-8")
    return [f"--overrides={file}"]


def _install(what: list[str], python: Path) -> None:
    """Install with uv, using pip's settings. Raises CliError."""
    settings = read_settings()
    result = _run([*settings.options, *what], python, settings.variables)
    if result.status != 0:
        raise _failure(result, python)
    output.notice(f"Installed into {python}")


def _run(options: Sequence[str], python: Path, variables: Mapping[str, str] | None = None) -> ToolResult:
    command = [uv.find_uv_bin(), "pip", "install", "--no-config", "--no-progress", f"--python={python}", *options]
    return run_tool(command, INSTALL_SECONDS, variables=variables, shows_downloads=True)


def _failure(result: ToolResult, python: Path) -> CliError:
    fact = f"did not finish within {INSTALL_SECONDS:.0f} s" if result.status is None else "failed"
    return CliError(
        f"the installation into {python} {fact}",
        "resolve what uv reports, or select the Python of a virtual environment with --python",
        details=result.last_lines,
    )
