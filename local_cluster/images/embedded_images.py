"""Images of the embedded cluster: buildah builds them, and the cluster's containerd imports them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from local_cluster.host.paths import REPOSITORY, Paths
from local_cluster.images import base, buildah, containerd
from local_cluster.images.catalog import LOCAL_BASES, NEWEST_ARGUMENT, ImageSpec, base_arguments
from local_cluster.node.containers import ctr_command
from local_cluster.tools.host_packages import ensure_system_packages


class EmbeddedImages:
    """Backend without Docker and without a registry. Needs root."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def prepare(self) -> None:
        """Install buildah and debootstrap."""
        ensure_system_packages(self._paths.cache)

    def base_key(self, image: ImageSpec) -> str:
        """Return a hash of the inputs of the base images."""
        return base.newest_key() if _has_newest_python(image, REPOSITORY) else base.base_key()

    def ensure_base(self) -> None:
        """Build the base image from Debian packages if it is missing."""
        base.ensure_base()

    def list_built(self) -> dict[str, str]:
        """Return the named images in buildah's storage, or none before buildah is installed."""
        return buildah.local_tags() if shutil.which("buildah") else {}

    def build(self, image: ImageSpec, key: str, root: Path) -> None:
        """Build an image with buildah. Builds the image with the newest Python first, if this one needs it and it is
        missing.
        """
        has_newest = _has_newest_python(image, root)
        if has_newest:
            base.ensure_newest_python()
        buildah.build(image, key, root)
        if has_newest:
            base.remove_newest_containers()

    def retag(self, image: ImageSpec, key: str, tags: Mapping[str, str]) -> None:
        """Point the tag `local` to the image tagged `key`, and remove the tags of earlier builds."""
        buildah.retag(image, key, tags)

    def on_node(self) -> dict[str, str]:
        """Return the images in containerd."""
        return containerd.image_digests(ctr_command())

    def load(self, image: ImageSpec, key: str) -> None:
        """Import the layers that containerd lacks."""
        containerd.import_image(image, key)
        containerd.forget_earlier(ctr_command(), image, key)

    def run(
        self,
        image: ImageSpec,
        command: Sequence[str],
        *,
        variables: Mapping[str, str],
        mounts: Sequence[str],
        cwd: str,
        as_caller: bool,
    ) -> int:
        """Run a command with `buildah run`, which ignores the image's entry point."""
        argv = ["buildah", "run", *buildah.ISOLATION, "--network", "host", "--workingdir", cwd]
        for name, value in variables.items():
            argv += ["--env", f"{name}={value}"]
        for mount in mounts:
            argv += ["--volume", mount]
        if as_caller:
            argv += ["--user", f"{os.getuid()}:{os.getgid()}"]
        with _container(image) as container:
            # Output is not captured, because the user may watch pytest or use a shell.
            return subprocess.run([*argv, container, "--", *command], check=False).returncode

    def prune(self) -> None:
        """Remove layers of earlier builds from buildah's storage."""
        buildah.prune()


def _has_newest_python(image: ImageSpec, root: Path) -> bool:
    return NEWEST_ARGUMENT in base_arguments(image, root, LOCAL_BASES)


@contextmanager
def _container(image: ImageSpec) -> Iterator[str]:
    name = buildah.buildah("from", "--pull-never", image.reference()).strip()
    try:
        yield name
    finally:
        buildah.buildah("rm", name)
