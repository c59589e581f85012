"""Commands `doctor` and `version`."""

from typing import Annotated

import typer
from rich.text import Text
from rlrun.constants import GROUP, VERSION
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP

from rlrun_cli import __version__
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster
from rlrun_cli.remote.diagnosis import Finding, examine
from rlrun_cli.remote.server import DISCOVERY_NAME, DISCOVERY_NAMESPACE, Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import FAILED, CliError, to_cli_error

DOCTOR_EPILOG = """Examples:

  rlrun doctor
  rlrun doctor -n team --context lab

Checks the API server and the kinds of rlrun, your rights in the namespace, the operator, rlrun-server, models and \
quotas. Ends within about 10 seconds.

Exit codes: 0 all is well; 1 something is wrong."""
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
) -> None:
    """Check what runs need of the cluster, and say what to do about what is missing."""
    api = cluster(ctx, kubeconfig, context, namespace)
    findings = examine(api, server)
    console = output.out()
    for finding in findings:
        for line in describe(finding):
            console.print(line)
    if any(finding.is_problem for finding in findings):
        raise typer.Exit(FAILED)


def describe(finding: Finding) -> list[Text]:
    """Return the lines of a finding: `ok NAME: TEXT`, or the problem and what to do."""
    if not finding.is_problem:
        return [Text("ok     ", style="green").append(f"{finding.name}: {finding.text}", style="default")]
    return [
        Text("wrong  ", style="bold red").append(f"{finding.name}: {finding.text}", style="default not bold"),
        Text(f"       do: {finding.hint}"),
    ]


def version(
    ctx: typer.Context,
    client: Annotated[bool, typer.Option("--client", help="Show the version of this program only.")] = False,
    fmt: Annotated[
        output.Format | None, typer.Option("-o", "--output", help="Print machine-readable output: json or yaml.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the versions of this program, the platform and its API."""
    versions = {"client": __version__}
    try:
        if not client:
            versions |= platform_versions(cluster(ctx, kubeconfig, context, None))
    except CliError:
        # The error follows, with its own line.
        _show_versions(versions, fmt)
        raise
    _show_versions(versions, fmt)


def _show_versions(versions: dict[str, str], fmt: output.Format | None) -> None:
    if fmt and fmt is not output.Format.name:
        output.emit_document(versions, fmt)
        return
    for name, value in versions.items():
        typer.echo(f"{name + ':':<10}{value}")


def platform_versions(api: RemoteCluster) -> dict[str, str]:
    """Return the versions in the cluster. Raises CliError if the API server does not answer."""
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
