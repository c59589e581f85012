"""Commands `doctor` and `version`."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text
from rlrun.constants import GROUP, VERSION
from rlrun.installation.checks import Finding
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP

from rlrun_cli import __version__
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context, cluster
from rlrun_cli.remote.diagnosis.checks import examine
from rlrun_cli.remote.diagnosis.gpu_checks import examine_gpus
from rlrun_cli.remote.diagnosis.network_probe import NetworkProbe
from rlrun_cli.remote.diagnosis.upgrade_checks import examine_upgrade
from rlrun_cli.remote.server import DISCOVERY_NAME, DISCOVERY_NAMESPACE, Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS, FAILED, CliError, to_cli_error

DOCTOR_EPILOG = """Examples:

  rlrun doctor
  rlrun doctor -n team --context lab
  rlrun doctor -n team --gpu
  rlrun doctor --upgrade

Checks the API server and rlrun's API kinds, your rights in the namespace, the operator, rlrun-server, models and \
quotas. Takes at most about 10 seconds.

--gpu is for the platform team: it compares GPUs, drivers, RuntimeClasses, pull secrets and volumes with the models. \
It creates two small pods and a NetworkPolicy in the namespace to test that images can be pulled, the hub is reachable \
and policies are enforced, and deletes them at the end. The pods have the security context, placement and proxy of \
orchestrators. Rights that you lack are listed. Takes at most five minutes, most of it for pulling images.

--upgrade is for the platform team before a chart upgrade. Run it with the CLI of the next version: it lists RLModels \
and unfinished RLRuns that the next version would reject, and namespaces with runs that it would not serve.

Exit codes: 0 all checks passed; 1 a check failed."""
VERSION_EPILOG = """Examples:

  rlrun version
  rlrun version --client -o json

`platform` is the version of the chart that is installed in the cluster."""
VERSION_LABEL = "app.kubernetes.io/version"


def doctor(
    ctx: typer.Context,
    server: Server = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Also check what GPU runs need, using two small pods.")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Also list objects that a platform of this CLI's version would reject.")
    ] = False,
) -> None:
    """Check that the cluster has what runs need, and suggest fixes."""
    api = cluster(ctx, kubeconfig, context, namespace)
    is_well = show(examine(api, server))
    if gpu:
        is_well &= show(examine_gpus(api))
        is_well &= show(NetworkProbe(api, cli_context(ctx).sleep, cli_context(ctx).clock).findings())
    if upgrade:
        is_well &= show(examine_upgrade(api))
    if not is_well:
        raise typer.Exit(FAILED)


def show(findings: Sequence[Finding]) -> bool:
    """Print the findings. Returns False if any of them is a problem."""
    console = output.out()
    for finding in findings:
        text = Text("\n".join(finding.lines()).translate(CONTROL_CHARACTERS))
        text.stylize("bold red" if finding.is_problem else "green", 0, len("wrong"))
        console.print(text)
    return not any(finding.is_problem for finding in findings)


def version(
    ctx: typer.Context,
    client: Annotated[bool, typer.Option("--client", help="Show only the version of this program.")] = False,
    fmt: Annotated[
        output.Format | None, typer.Option("-o", "--output", help="Print machine-readable output: json or yaml.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the versions of this program, the platform and its API."""
    versions, problem = {"client": __version__}, None
    if not client:
        try:
            versions |= platform_versions(cluster(ctx, kubeconfig, context, None))
        except CliError as error:
            problem = error
    _show_versions(versions, fmt)
    if problem is not None:
        output.notice(
            f"The platform's version is unknown: {problem.message}{f'; {problem.hint}' if problem.hint else ''}"
        )


def _show_versions(versions: dict[str, str], fmt: output.Format | None) -> None:
    if fmt and fmt is not output.Format.name:
        output.emit_document(versions, fmt)
        return
    for name, value in versions.items():
        typer.echo(output.printable(f"{name + ':':<10}{value}").plain)


def platform_versions(api: RemoteCluster) -> dict[str, str]:
    """Return the versions of the platform and its API. Raises CliError if the API server does not respond."""
    try:
        api.served_kinds()
        served = f"{GROUP}/{VERSION}"
    except ApiError as error:
        if error.status != 404:
            raise to_cli_error(error) from None
        served = "not installed"
    try:
        labels = api.get(CONFIG_MAP, DISCOVERY_NAME, DISCOVERY_NAMESPACE)["metadata"].get("labels") or {}
        platform = str(labels.get(VERSION_LABEL) or "unknown")
    except CliError as problem:
        platform = f"unknown ({problem.message})"
    return {"platform": platform, "api": served}
