"""What the node's containerd holds: images to import, and containers to remove.

Images live in the cache and survive the cluster. Containers don't: whatever an earlier cluster left in containerd's
database is removed before a new kubelet could take it for its own.
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


def ctr_command() -> list[str]:
    """The argv prefix that talks to the local cluster's containerd, in the namespace the kubelet sees."""
    return ["ctr", "--address", str(paths().containerd_socket), "--namespace", NAMESPACE]


def images() -> set[str]:
    """Names of the imported images."""
    listing = run([*ctr_command(), "images", "list", "--quiet"], next_step="Is the cluster up? `local_cluster status`")
    return set(listing.stdout.split())


def import_archives(archives: Iterable[Path]) -> None:
    """Import image archives (`oci-archive:` or `docker-archive:` files) under the names they carry."""
    for archive in archives:
        if not archive.exists():
            raise LocalClusterError(f"There is no image archive at {archive}: build it first.")
        with progress.step(f"import {archive.name} ({archive.stat().st_size >> 20} MiB)"):
            run(
                [*ctr_command(), "images", "import", archive],
                next_step="Is the cluster up (`python -m local_cluster status`), and is there room on the disk?",
            )


def ensure_binary_images(wanted: Iterable[BinaryImage], paths: Paths) -> None:
    """Write and import those images of single executables that are missing."""
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
    """Remove every container, with its task and snapshot; returns how many there were."""
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
