"""Commands of `python -m local_cluster`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from local_cluster.addons import fake_gpus
from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.control_plane.without_nodes import GARBAGE_COLLECTION, ControlPlane
from local_cluster.host.locks import file_lock
from local_cluster.host.machine import require_supported_machine
from local_cluster.host.paths import paths
from local_cluster.host.progress import progress
from local_cluster.host.provider_choice import provider_choice
from local_cluster.providers.selection import provider
from local_cluster.tools.binaries import ensure_program

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A real single-node Kubernetes on this machine, for development and CI.\n\n"
    "RLRUN_CLUSTER=embedded|kind selects plain processes (as root) or kind with Docker. RLRUN_CACHE (~/.cache/rlrun) "
    "is the directory for binaries, images and the kind cluster, and RLRUN_STATE (/var/lib/rlrun-local) for the "
    "embedded cluster.",
)


@app.command()
def up(
    images: Annotated[bool, typer.Option("--images", help="Also build and import the images.")] = False,
    policies: Annotated[bool, typer.Option("--policies", help="Enforce NetworkPolicies, as most clusters do.")] = False,
    gvisor: Annotated[bool, typer.Option("--gvisor", help="Build gVisor and add the RuntimeClass gvisor.")] = False,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Number of fake GPUs that the node advertises; 0 removes them.")
    ] = None,
    gpu_taint: Annotated[bool, typer.Option("--gpu-taint", help="Taint the node like nodes with GPUs.")] = False,
) -> None:
    """Start the cluster, or the missing parts of a running one. The first start takes minutes."""
    require_supported_machine()
    if gpu_taint and not gpus:
        raise typer.BadParameter("requires a positive --gpus", param_hint="--gpu-taint")
    chosen, reason = provider(), provider_choice().reason
    progress.say(f"      cluster: {chosen.name} ({reason})")
    with progress.step(f"up ({chosen.name})"):
        chosen.up(images)
    if policies:
        chosen.enforce_policies()
    if gvisor:
        chosen.offer_gvisor()
    if gpus is not None:
        fake_gpus.advertise(LocalClusterKubectl(chosen.status().kubectl, chosen.kubeconfig), gpus, tainted=gpu_taint)
    progress.save()
    progress.say(f"The cluster is up: export KUBECONFIG={chosen.kubeconfig}")


@app.command()
def down(purge: Annotated[bool, typer.Option(help="Also remove imported images.")] = False) -> None:
    """Remove the cluster from this machine: processes, mounts, namespaces, links, rules, cgroups, state."""
    chosen = provider()
    with progress.step(f"down ({chosen.name})"):
        chosen.down(purge)
    progress.save()
    _report_leftovers(chosen.leftovers())


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what is running and how to reach it. Exits with status 1 if something is missing."""
    found = provider().status()
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        typer.echo(f"provider    {found.provider}")
        typer.echo(f"healthy     {'yes' if found.healthy else 'no'}")
        typer.echo(f"kubeconfig  {found.kubeconfig}")
        if found.s3:
            typer.echo(f"S3          {found.s3.endpoint} (bucket {found.s3.bucket}, Secret {found.s3.secret})")
        for name, pid in found.daemons.items():
            typer.echo(f"daemon      {name} ({pid})")
    for problem in found.problems:
        typer.echo(f"problem: {problem}", err=True)
    if not found.healthy:
        typer.echo("Run `python -m local_cluster up` to repair or replace the cluster.", err=True)
        raise typer.Exit(1)


@app.command()
def kubeconfig() -> None:
    """Print the path of the cluster's kubeconfig."""
    typer.echo(provider().kubeconfig)


@app.command()
def leftovers() -> None:
    """List everything that the cluster has left on this machine. Exits with status 1 unless the list is empty."""
    _report_leftovers(provider().leftovers())


@app.command("import")
def import_images(
    archives: Annotated[list[Path], typer.Argument(help="oci-archive or docker-archive files.")],
) -> None:
    """Import image archives into the node."""
    provider().import_images(archives)
    progress.save()


@app.command()
def binaries() -> None:
    """Install packages and build or check binaries, without starting anything."""
    provider().prepare()
    progress.save()


@app.command()
def tool(name: Annotated[str, typer.Argument(help="kubectl, helm, etcd, weed, ...")]) -> None:
    """Print the path of a program of the cluster. Builds it first if it is missing."""
    typer.echo(ensure_program(name, paths()))


@app.command("control-plane-up")
def control_plane_up(
    garbage_collection: Annotated[bool, typer.Option(help="Remove dependents of deleted owners.")] = False,
) -> None:
    """Start only etcd and kube-apiserver, independent of the cluster, and print the kubeconfig. Needs no root."""
    directories = paths()
    with file_lock(directories.control_plane.with_suffix(".lock")):
        controllers = GARBAGE_COLLECTION if garbage_collection else ()
        typer.echo(ControlPlane(directories.control_plane, controllers=controllers).start().kubeconfig)


@app.command("control-plane-down")
def control_plane_down() -> None:
    """Stop the control plane that `control-plane-up` started."""
    directories = paths()
    with file_lock(directories.control_plane.with_suffix(".lock")):
        ControlPlane(directories.control_plane).stop()


def _report_leftovers(found: list[str]) -> None:
    if not found:
        progress.say("Nothing is left on this machine, except caches.")
        return
    for line in found:
        typer.echo(line)
    typer.echo("Run `python -m local_cluster down` to remove what is left of the cluster.", err=True)
    raise typer.Exit(1)
