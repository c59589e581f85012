"""Base images of the Dockerfiles, made from Debian packages for machines that cannot reach a registry.

One image resembles `python:3.11-slim-bookworm`: Debian 12, Python 3.11, commands `python` and `pip`. Settings of this
machine (CA bundle, configuration of pip) go into this image only, so that the Dockerfiles are the same everywhere. The
other image has Python 3.13 in /usr/local, as in `python:3.13-slim-bookworm`, built from the source of Debian 13.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.images.buildah import BUILD_SECONDS, ISOLATION, buildah, local_tags
from local_cluster.images.catalog import BASE_ARGUMENT, BASE_REFERENCE, NEWEST_REFERENCE

BASE_STEPS = ("base image: debootstrap", "base image: commit")
NEWEST_STEP = "newest Python: build"
_KEYED_REFERENCE = "localhost/rlrun-base"
_KEYED_NEWEST = "localhost/rlrun-newest-python"
_NEWEST_FOLDER = Path(__file__).with_name("python")
_RECIPE = "1"  # raise it when this module changes the image without a change of its inputs
_SUITE = "bookworm"
_PACKAGES = ("python3", "python3-pip", "python3-venv", "ca-certificates")
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
# Options that select the source of packages. Paths to files of this machine would not exist in the image.
_PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout")


def pip_configuration(files: Iterable[Path], environment: Mapping[str, str], has_ca_bundle: bool) -> str:
    """Return a pip.conf that uses the same package index as pip on this machine.

    Args:
        files: Configuration files of pip. Later files take precedence.
        environment: Variables; `PIP_*` override the files, as in pip.
        has_ca_bundle: True if the image gets the CA bundle of this machine.
    """
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        parser.read(file)
        if parser.has_section("global"):
            found |= dict(parser.items("global"))
    for option in _PIP_OPTIONS:
        value = environment.get("PIP_" + option.upper().replace("-", "_"))
        if value:
            found[option] = value
    lines = [f"{option} = {found[option]}" for option in _PIP_OPTIONS if option in found]
    if has_ca_bundle:
        lines.append(f"cert = {_CA_BUNDLE}")
    return "\n".join(["[global]", *lines, ""])


def base_key() -> str:
    """Return a hash of the base image's inputs. Images based on it are rebuilt when the hash changes."""
    bundle = _CA_BUNDLE.read_bytes() if _CA_BUNDLE.exists() else b""
    digest = hashlib.sha256(repr((_RECIPE, _SUITE, _PACKAGES, _pip_configuration())).encode())
    digest.update(bundle)
    return digest.hexdigest()[:12]


def newest_key() -> str:
    """Return a hash of the inputs of the image with the newest Python."""
    return hashlib.sha256(base_key().encode() + (_NEWEST_FOLDER / "Dockerfile").read_bytes()).hexdigest()[:12]


def ensure_newest_python() -> None:
    """Build the image with the newest Python if it is missing. The base image must exist."""
    keyed = f"{_KEYED_NEWEST}:{newest_key()}"
    if not _is_tagged(keyed, NEWEST_REFERENCE):
        with progress.step(NEWEST_STEP):
            arguments = ["bud", *ISOLATION, "--network", "host", "--pull-never", "--tag", keyed]
            run(
                ["nice", "buildah", *arguments, "--build-arg", f"{BASE_ARGUMENT}={BASE_REFERENCE}", _NEWEST_FOLDER],
                timeout=BUILD_SECONDS,
                next_step="Check that `apt-get update` works.",
            )
        buildah("tag", keyed, NEWEST_REFERENCE)


def remove_newest_containers() -> None:
    """Remove the containers that builds have left of the image with the newest Python. buildah 1.28 keeps the container
    of a stage that has no instructions.
    """
    listed = json.loads(buildah("containers", "--json") or "[]") or []
    left = [each["id"] for each in listed if each["imagename"].startswith(_KEYED_NEWEST)]
    if left:
        buildah("rm", *left)


def _is_tagged(keyed: str, reference: str) -> bool:
    """Return whether an image is tagged `keyed`, and if so, tag it `reference` as well."""
    tags = local_tags()
    if keyed in tags and tags.get(reference) != tags[keyed]:
        buildah("tag", keyed, reference)
    return keyed in tags


def ensure_base() -> None:
    """Build the base image if it is missing."""
    keyed = f"{_KEYED_REFERENCE}:{base_key()}"
    if _is_tagged(keyed, BASE_REFERENCE):
        return
    # Avoid /tmp, which may be small or mounted noexec; debootstrap needs device nodes.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rlrun-base-") as folder:
        root = Path(folder, "root")
        with progress.step(BASE_STEPS[0]):
            run(
                ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _SUITE, root],
                next_step="debootstrap needs root and a Debian mirror. Check that `apt-get update` works.",
            )
        with progress.step(BASE_STEPS[1]):
            _shape(root)
            _commit(root, Path(folder, "root.tar"), keyed)


def _pip_configuration() -> str:
    files = [Path(name).expanduser() for name in _PIP_FILES]
    return pip_configuration(files, os.environ, _CA_BUNDLE.exists())


def _shape(root: Path) -> None:
    """Convert a Debian system to the layout of the Python image."""
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    python = root / "usr/bin/python"
    if not python.exists():
        python.symlink_to("python3")
    for waste in ("var/cache/apt/archives", "var/lib/apt/lists"):
        for entry in (root / waste).iterdir():
            if entry.is_file():
                entry.unlink()
            else:
                shutil.rmtree(entry)
    if _CA_BUNDLE.exists():
        shutil.copyfile(_CA_BUNDLE, root / _CA_BUNDLE.relative_to("/"))
    (root / "etc/pip.conf").write_text(_pip_configuration())


def _commit(root: Path, archive: Path, keyed: str) -> None:
    # debootstrap may leave /proc mounted: --one-file-system excludes it from the tar, umount lets the folder be
    # removed.
    run(["umount", root / "proc"], check=False)
    run(["umount", root / "sys"], check=False)
    run(["tar", "-C", root, "--numeric-owner", "--one-file-system", "--exclude=./dev/*", "-cf", archive, "."])
    container = buildah("from", "scratch").strip()
    try:
        buildah("add", container, archive, "/")
        buildah(
            *("config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"),
            *("--env", "LANG=C.UTF-8", "--cmd", "python3", container),
        )
        buildah("commit", "--quiet", container, keyed)
        buildah("tag", keyed, BASE_REFERENCE)
    finally:
        buildah("rm", container)
