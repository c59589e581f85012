"""Typer application of `rlrun`: the global options and the commands."""

from typing import Annotated

import typer

from rlrun_cli import __version__
from rlrun_cli.command_table import ROOT
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context
from rlrun_cli.terminal.lazy_group import HELP_SETTINGS, LazyGroup

HELP = """Reinforcement-learning runs on your own Kubernetes cluster.

Write a config, start a run, watch its reward, list its adapters:

\b
  rlrun init rl.toml
  rlrun run rl.toml --follow
  rlrun list
  rlrun adapters reverse-text-x7k2p
"""

EPILOG = """The cluster is selected as in kubectl: KUBECONFIG (else ~/.kube/config), its current context and namespace.

Exit codes: 0 success; 1 the cluster, S3 or the run reported a failure; 2 invalid command line or file."""


class Commands(LazyGroup):
    """Group of all commands."""

    entries = ROOT


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help=HELP,
    epilog=EPILOG,
    context_settings=HELP_SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # Locals may hold values of secrets.
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rlrun {__version__}")
        raise typer.Exit


@app.callback()
def set_cluster_options(
    ctx: typer.Context,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Store the options that precede the command's name."""
    options = cli_context(ctx)
    options.kubeconfig, options.context, options.namespace = kubeconfig, context, namespace
