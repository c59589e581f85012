"""Images and containers in the node's containerd.

Images are in the cache and survive the cluster. Containers of an earlier cluster are removed from containerd's database
before a new kubelet starts, because the kubelet would adopt them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import Paths, paths
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.node.static_images import BinaryImage

NAMESPACE = "k8s.io"
_CLUSTER_HINT = "Check that the cluster is up: `python -m local_cluster status`."


def ctr_command() -> list[str]:
    """Return the argv prefix of `ctr` for the cluster's containerd and the namespace of the kubelet."""
    return ["ctr", "--address", str(paths().containerd_socket), "--namespace", NAMESPACE]


def images() -> set[str]:
    """Return the names of the imported images."""
    listing = run([*ctr_command(), "images", "list", "--quiet"], next_step=_CLUSTER_HINT)
    return set(listing.stdout.split())


def import_archives(archives: Iterable[Path]) -> None:
    """Import image archives (`oci-archive:` or `docker-archive:` files) under their own names."""
    for archive in archives:
        if not archive.exists():
            raise LocalClusterError(f"There is no image archive at {archive}. Build it first.")
        with progress.step(f"import {archive.name} ({archive.stat().st_size >> 20} MiB)"):
            run(
                [*ctr_command(), "images", "import", archive],
                next_step=f"{_CLUSTER_HINT} Check that the disk has space.",
            )


def ensure_binary_images(wanted: Iterable[BinaryImage], paths: Paths) -> None:
    """Create and import the images in `wanted` that the node lacks. Each image contains one executable."""
    present = images()
    for image in wanted:
        if image.reference in present:
            continue
        archive = paths.state / f"{image.name}.tar"
        try:
            image.write(archive)
            import_archives([archive])
        finally:
            archive.unlink(missing_ok=True)


def remove_containers() -> int:
    """Remove every container with its task and snapshot. Returns the number of containers."""
    ctr = ctr_command()
    containers = run([*ctr, "containers", "list", "--quiet"]).stdout.split()
    if not containers:
        return 0
    tasks = run([*ctr, "tasks", "list", "--quiet"]).stdout.split()
    for task in tasks:
        run([*ctr, "tasks", "delete", "--force", task], check=False, timeout=30)
    run([*ctr, "containers", "delete", *containers], check=False, timeout=120)
    snapshots = run([*ctr, "snapshots", "list"], check=False).stdout.splitlines()[1:]
    # Writable layers are the active snapshots; committed ones belong to images.
    active = [line.split()[0] for line in snapshots if line.split()[-1] == "Active"]
    for snapshot in active:
        run([*ctr, "snapshots", "remove", snapshot], check=False, timeout=30)
    return len(containers)
