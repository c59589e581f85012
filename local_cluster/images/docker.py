"""The same images where a Docker engine works, for a kind cluster: `docker build`, then `kind load`.

Not verified by this project's own tests: the machines it is developed on have no Docker engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from local_cluster.host.paths import REPOSITORY
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.images.catalog import IMAGES, LOCAL_TAG, ImageSpec, content_key

_BUILD_SECONDS = 3600.0


def ensure_images_in_kind(cluster: str, images: Sequence[ImageSpec] = IMAGES) -> None:
    """Build with the Docker engine (its own cache decides what is done again) and load into a kind cluster.

    Args:
        cluster: kind's name of the cluster.
        images: Which ones.
    """
    for image in images:
        # The base comes from a registry here, so only the tree is in the key.
        key = content_key(image, REPOSITORY, base_key="registry")
        names = [f"{image.name}:{key}", f"{image.name}:{LOCAL_TAG}"]
        arguments = [part for name, value in image.build_args for part in ("--build-arg", f"{name}={value}")]
        arguments += [part for name in names for part in ("--tag", name)]
        with progress.step(f"docker build {image.name}"):
            run(
                ["docker", "build", *arguments, "--file", REPOSITORY / image.dockerfile, REPOSITORY],
                timeout=_BUILD_SECONDS,
                next_step="Does `docker info` answer?",
            )
        with progress.step(f"kind load {image.name}"):
            run(
                ["kind", "load", "docker-image", "--name", cluster, *names],
                timeout=_BUILD_SECONDS,
                next_step=f"Is there a kind cluster called {cluster} (`kind get clusters`)?",
            )
