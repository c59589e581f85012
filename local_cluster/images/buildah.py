"""Image builds with buildah, from ordinary Dockerfiles and without a daemon or user namespaces."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.images.catalog import LOCAL_BASES, LOCAL_TAG, ImageSpec, base_arguments, earlier_references

# Isolation by chroot works inside containers without additional capabilities.
ISOLATION = ("--isolation", "chroot")
BUILD_SECONDS = 3600.0
# A listing fails when a parallel build removes an image while it is read.
_LISTINGS = 4
_retagging = threading.Lock()


def buildah(*arguments: str | Path, timeout: float | None = None, next_step: str = "") -> str:
    """Run buildah and return its output.

    Raises:
        LocalClusterError: buildah failed.
    """
    return run(["buildah", *arguments], timeout=timeout, next_step=next_step).stdout


def local_tags() -> dict[str, str]:
    """Return the named images in buildah's storage as a mapping of full names to image ids."""
    for _ in range(_LISTINGS - 1):
        try:
            return _list()
        except LocalClusterError:
            time.sleep(0.5)
    return _list()


def _list() -> dict[str, str]:
    listing = json.loads(buildah("images", "--json") or "[]")
    return {name: entry["id"] for entry in listing or [] for name in entry.get("names") or []}


def build_step(image: ImageSpec) -> str:
    """Return the name of the step that builds an image, for the log and estimates."""
    return f"build {image.name}"


def build(image: ImageSpec, key: str, root: Path) -> None:
    """Build an image and tag it with its key and `local`. Unchanged layers come from the layer cache."""
    arguments: list[str | Path] = ["bud", *ISOLATION, "--network", "host", "--layers", "--pull-never"]
    for name, value in (*image.build_args, *base_arguments(image, root, LOCAL_BASES).items()):
        arguments += ["--build-arg", f"{name}={value}"]
    arguments += ["--file", root / image.dockerfile, "--tag", image.reference(key), root]
    with progress.step(build_step(image)):
        run(
            ["nice", "buildah", *arguments],  # daemons of the cluster may start beside it
            timeout=BUILD_SECONDS,
            next_step="Check that the package index is reachable and that /var has space.",
        )
    with _retagging:
        retag(image, key, local_tags())


def retag(image: ImageSpec, key: str, tags: Mapping[str, str]) -> None:
    """Point the tag `local` to the image tagged `key`, and remove the tags of earlier builds."""
    if tags.get(image.reference(LOCAL_TAG)) != tags[image.reference(key)]:
        buildah("tag", image.reference(key), image.reference(LOCAL_TAG))
    for name in earlier_references(image, key, tags):
        # A container may still use it. The next build tries again.
        with contextlib.suppress(LocalClusterError):
            buildah("rmi", name)


def prune() -> None:
    """Remove layers that no named image uses."""
    with progress.step("prune layers of earlier builds"):
        buildah("rmi", "--prune")
