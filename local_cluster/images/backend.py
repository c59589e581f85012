"""Interface of an image builder and of the node that gets its images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from local_cluster.images.catalog import ImageSpec


class ImageBackend(Protocol):
    """Image builder and node of one provider. Images have the same names in both."""

    def prepare(self) -> None:
        """Check or install what the builder needs."""
        ...

    def base_key(self, image: ImageSpec) -> str:
        """Return a hash of the base images of an image. It is part of the image's key."""
        ...

    def ensure_base(self) -> None:
        """Build the base image of all images, unless the builder pulls it."""
        ...

    def list_built(self) -> dict[str, str]:
        """Return the built images as a mapping of names to ids."""
        ...

    def build(self, image: ImageSpec, key: str, root: Path) -> None:
        """Build an image from the repository at `root`; tag it with its key and `local`."""
        ...

    def retag(self, image: ImageSpec, key: str, tags: Mapping[str, str]) -> None:
        """Point the tag `local` to the image tagged `key`, and remove the tags of earlier builds. `tags` is the result
        of `list_built`.
        """
        ...

    def on_node(self) -> dict[str, str]:
        """Return the digests of the images on the node by name. Raises LocalClusterError while the cluster is down."""
        ...

    def load(self, image: ImageSpec, key: str) -> None:
        """Copy a built image to the node with its key and `local` as tags, and remove earlier builds there."""
        ...

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
        """Run a command in a temporary container of the image tagged `local`, in the network of this machine.

        Args:
            image: A built image.
            command: The argv.
            variables: Additional variables.
            mounts: `source:target[:ro]`.
            cwd: Working directory.
            as_caller: Run as the user of this process, who owns the mounted folders, instead of the image's user.

        Returns:
            Exit status of the command. Its output is not captured.
        """
        ...

    def prune(self) -> None:
        """Remove layers that no named image uses. Raises LocalClusterError if this program must not remove them."""
        ...
