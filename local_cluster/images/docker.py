"""Images for a kind cluster: `docker build`, then `kind load`.

Not covered by tests: the development machines have no Docker engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from local_cluster.host.paths import REPOSITORY
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.images.catalog import IMAGES, LOCAL_TAG, ImageSpec, content_key

_BUILD_SECONDS = 3600.0


def ensure_images_in_kind(cluster: str, images: Sequence[ImageSpec] = IMAGES) -> None:
    """Build images with Docker, which has its own cache, and load them into a kind cluster.

    Args:
        cluster: Name of the cluster in kind.
        images: Images to build.
    """
    for image in images:
        # The base comes from a registry, so the key depends on the tree only.
        key = content_key(image, REPOSITORY, base_key="registry")
        names = [f"{image.name}:{key}", f"{image.name}:{LOCAL_TAG}"]
        arguments = [part for name, value in image.build_args for part in ("--build-arg", f"{name}={value}")]
        arguments += [part for name in names for part in ("--tag", name)]
        with progress.step(f"docker build {image.name}"):
            run(
                ["docker", "build", *arguments, "--file", REPOSITORY / image.dockerfile, REPOSITORY],
                timeout=_BUILD_SECONDS,
                next_step="Check the Docker engine with `docker info`.",
            )
        with progress.step(f"kind load {image.name}"):
            run(
                ["kind", "load", "docker-image", "--name", cluster, *names],
                timeout=_BUILD_SECONDS,
                next_step=f"Check that `kind get clusters` lists {cluster}.",
            )
