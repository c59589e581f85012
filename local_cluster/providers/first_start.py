"""Steps of `up` whose results are not in the cache, and their durations on a machine with two cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from local_cluster.host.forecast import CommandSteps
from local_cluster.host.paths import REPOSITORY, Paths
from local_cluster.images.base import BASE_STEPS, NEWEST_STEP
from local_cluster.images.buildah import build_step
from local_cluster.images.catalog import CHAINS, NEWEST_ARGUMENT, ImageSpec, base_arguments
from local_cluster.images.containerd import import_step
from local_cluster.images.ensure import missing_images
from local_cluster.tools.binaries import CLUSTER_BUILDS, missing_builds
from local_cluster.tools.binaries import build_step as program_step
from local_cluster.tools.host_packages import INSTALL_STEP, missing_system_packages

SECONDS: Mapping[str, float] = {
    "build kubernetes, etcd, coredns, pause, helm": 640,
    "install system packages": 25,
    "base image: debootstrap": 65,
    "base image: commit": 10,
    "build rlrun-inference-cpu": 480,
    "build rlrun-trainer": 80,
    "newest Python: build": 240,
    "build rlrun-orchestrator": 330,
    "build rlrun-operator": 85,
    "import rlrun-inference-cpu": 120,
    "import rlrun-trainer": 15,
    "import rlrun-orchestrator": 25,
    "import rlrun-operator": 10,
}
"""Seconds of each step in a first start on a machine with two cores, with tracks running in parallel."""


def steps_ahead(paths: Paths, images: bool) -> CommandSteps | None:
    """Return the long steps that `up` still has to run, or None if there are none."""
    install = (INSTALL_STEP,) if missing_system_packages() else ()
    programs = tuple(program_step(build) for build in missing_builds(CLUSTER_BUILDS, paths))
    missing = missing_images() if images else []
    chains = [[image for image in chain if image in missing] for chain in CHAINS]
    tracks = [programs, *((*install, *BASE_STEPS, *_build_steps(chain)) for chain in chains if chain)]
    plan = CommandSteps(tuple(tracks), tuple(import_step(image) for image in missing))
    return plan if plan.steps else None


def _build_steps(chain: Sequence[ImageSpec]) -> Iterator[str]:
    for image in chain:
        if base_arguments(image, REPOSITORY, {NEWEST_ARGUMENT: ""}):
            yield NEWEST_STEP
        yield build_step(image)
