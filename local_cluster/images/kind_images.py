"""Images of the kind cluster: Docker builds them on the base image named in the Dockerfiles, and kind loads them.

Only flags that both builders of `docker build` support are used: BuildKit and the legacy builder, which is used without
the buildx plugin.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from local_cluster.host.docker_engine import docker_problem
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import Paths
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.images import containerd
from local_cluster.images.catalog import LOCAL_TAG, ImageSpec, earlier_references
from local_cluster.node.kind_node import cluster_name, kind_ctr_command

_BUILD_SECONDS = 7200.0
_LOAD_SECONDS = 1800.0
_LIST = ("docker", "image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}} {{.ID}}")
# By default, BuildKit adds an attestation to the image. `docker save` omits it from the archive although the image's
# index names it, and `kind load` then fails (kubernetes-sigs/kind issue 3795).
# A builder in a container would keep the image in its own cache, so use Docker's own builder.
_BUILD_VARIABLES = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "BUILDX_BUILDER": ""}


class KindImages:
    """Backend of the kind cluster. Needs a Docker engine, and no root."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def prepare(self) -> None:
        """Check that a Docker engine responds.

        Raises:
            LocalClusterError: No Docker engine responds.
        """
        problem = docker_problem()
        if problem is not None:
            raise LocalClusterError(f"The images of the kind cluster are built with Docker, but {problem}")

    def base_key(self, image: ImageSpec) -> str:
        """Return a constant, because the key already covers the Dockerfile, which names the base images."""
        return "registry"

    def ensure_base(self) -> None:
        """Do nothing, because Docker pulls the base image."""

    def list_built(self) -> dict[str, str]:
        """Return the images in the store of the Docker engine."""
        rows = [line.split() for line in run(_LIST).stdout.splitlines()]
        return {row[0]: row[1] for row in rows if len(row) == 2}

    def build(self, image: ImageSpec, key: str, root: Path) -> None:
        """Build an image with `docker build`."""
        arguments = [part for name, value in image.build_args for part in ("--build-arg", f"{name}={value}")]
        with progress.step(f"docker build {image.name}"):
            run(
                ["docker", "build", *arguments, "--file", root / image.dockerfile, "--tag", image.reference(key), root],
                env=_BUILD_VARIABLES,
                timeout=_BUILD_SECONDS,
                next_step="Check that Docker can pull images, and with `docker system df` that its disk has space.",
            )
        tags = self.list_built()
        if image.reference(key) not in tags:
            raise LocalClusterError(
                f"`docker build` has built {image.reference(key)}, but the Docker engine does not list it. "
                "Select Docker's own builder with `docker buildx use default`."
            )
        self.retag(image, key, tags)

    def retag(self, image: ImageSpec, key: str, tags: Mapping[str, str]) -> None:
        """Point the tag `local` to the image tagged `key`, and remove the tags of earlier builds."""
        if tags.get(image.reference(LOCAL_TAG)) != tags[image.reference(key)]:
            run(["docker", "tag", image.reference(key), image.reference(LOCAL_TAG)])
        for name in earlier_references(image, key, tags):
            # A container may still use it. The next build tries again.
            with contextlib.suppress(LocalClusterError):
                run(["docker", "image", "rm", name])

    def on_node(self) -> dict[str, str]:
        """Return the images in the containerd of the node."""
        return containerd.image_digests(kind_ctr_command(self._paths))

    def load(self, image: ImageSpec, key: str) -> None:
        """Load both tags with `kind load docker-image`, which writes the whole image to TMPDIR."""
        names = (image.reference(key), image.reference(LOCAL_TAG))
        with progress.step(f"kind load {image.name}"):
            run(
                ["kind", "load", "docker-image", "--name", cluster_name(self._paths), *names],
                # /tmp may be too small for an image of several gigabytes.
                env={"TMPDIR": str(self._paths.kind)},
                timeout=_LOAD_SECONDS,
                next_step=f"Check with `python -m local_cluster status` that the cluster is up, and that "
                f"{self._paths.kind} has space for the image.",
            )
        containerd.forget_earlier(kind_ctr_command(self._paths), image, key)

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
        """Run a command with `docker run`, replacing the image's entry point."""
        argv = ["docker", "run", "--rm", "--network", "host", "--workdir", cwd, "--entrypoint", command[0]]
        for name, value in variables.items():
            argv += ["--env", f"{name}={value}"]
        for mount in mounts:
            argv += ["--volume", mount]
        if as_caller:
            # Files created by root in the container could not be removed by the user of this machine.
            argv += ["--user", f"{os.getuid()}:{os.getgid()}"]
        return subprocess.run([*argv, image.reference(), *command[1:]], check=False).returncode

    def prune(self) -> None:
        """Raise an error, because the layers may belong to other projects of the user.

        Raises:
            LocalClusterError: Always.
        """
        raise LocalClusterError(
            "Docker removes the layers of earlier builds itself. `docker builder prune` empties its build cache."
        )
