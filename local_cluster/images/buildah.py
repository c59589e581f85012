"""buildah as a builder: no daemon, no user namespaces, ordinary Dockerfiles."""

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
from local_cluster.images.catalog import BASE_REFERENCE, LOCAL_TAG, ImageSpec

# chroot: containers inside containers need nothing from the kernel that an ordinary root lacks.
ISOLATION = ("--isolation", "chroot")
_BUILD_SECONDS = 3600.0
# A listing fails when an image vanishes while it is read, which another build's clean-up can cause at any time.
_LISTINGS = 4
_retagging = threading.Lock()


def buildah(*arguments: str | Path, timeout: float | None = None, next_step: str = "") -> str:
    """Run buildah and return what it printed.

    Raises:
        LocalClusterError: It failed.
    """
    return run(["buildah", *arguments], timeout=timeout, next_step=next_step).stdout


def local_tags() -> dict[str, str]:
    """Every named image in buildah's storage: full name to image id."""
    for _ in range(_LISTINGS - 1):
        try:
            return _list()
        except LocalClusterError:
            time.sleep(0.5)
    return _list()


def _list() -> dict[str, str]:
    listing = json.loads(buildah("images", "--json") or "[]")
    return {name: entry["id"] for entry in listing or [] for name in entry.get("names") or []}


def build(image: ImageSpec, key: str, root: Path) -> None:
    """Build one image and tag it with its key and as `local`; unchanged layers come from the layer cache."""
    arguments: list[str | Path] = ["bud", *ISOLATION, "--network", "host", "--layers", "--pull-never"]
    for name, value in (*image.build_args, ("BASE_IMAGE", BASE_REFERENCE)):
        arguments += ["--build-arg", f"{name}={value}"]
    arguments += ["--file", root / image.dockerfile, "--tag", image.reference(key), root]
    with progress.step(f"build {image.name}"):
        buildah(
            *arguments, timeout=_BUILD_SECONDS, next_step="Is the package index reachable, and is there room in /var?"
        )
    with _retagging:
        retag(image, key, local_tags())


def retag(image: ImageSpec, key: str, tags: Mapping[str, str]) -> None:
    """Let `local` follow the key, and take the names of earlier builds away."""
    if tags.get(image.reference(LOCAL_TAG)) != tags[image.reference(key)]:
        buildah("tag", image.reference(key), image.reference(LOCAL_TAG))
    earlier = image.reference("")
    for name in tags:
        if name.startswith(earlier) and name not in (image.reference(key), image.reference(LOCAL_TAG)):
            # A command may run in it still, or have been killed there; the build after this one tries again.
            with contextlib.suppress(LocalClusterError):
                buildah("rmi", name)


def prune() -> None:
    """Remove layers that no named image rests on."""
    with progress.step("prune layers of earlier builds"):
        buildah("rmi", "--prune")
