"""Typer application of `rlrun`: its commands, and how their errors become messages and exit codes."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlrun_cli.commands import artifacts, download, environments, follow, gc, history, init, keys, logs, run, runs
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError

HELP = """Reinforcement-learning runs on your own Kubernetes cluster.

Write a config, start a run, watch its reward, list its adapters:

  rlrun init rl.toml

  rlrun run rl.toml --follow

  rlrun list

  rlrun adapters reverse-text-x7k2p
"""

EPILOG = """The cluster is selected as in kubectl: KUBECONFIG (else ~/.kube/config), its current context and namespace.

Exit codes: 0 success; 1 the cluster, S3 or the run reported a failure; 2 invalid command line or file."""


class Commands(TyperGroup):
    """Group of all commands. Prints a CliError as a message and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the selected command."""
        try:
            return super().invoke(ctx)
        except CliError as problem:
            output.show_error(problem)
            raise typer.Exit(problem.code) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold the values of secrets
)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"rlrun {version('rlrun')}")
        except PackageNotFoundError:
            typer.echo("rlrun (version unknown: not installed as a package)")
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
    """Store the options given before the name of the command."""
    options = cli_context(ctx)
    options.kubeconfig, options.context, options.namespace = kubeconfig, context, namespace


RUNS, CATALOG = "Runs", "Models and artifacts"
app.command("init", epilog=init.EPILOG, rich_help_panel=RUNS)(init.init)
app.command("run", epilog=run.EPILOG, rich_help_panel=RUNS)(run.run)
app.command("list", epilog=runs.LIST_EPILOG, rich_help_panel=RUNS)(runs.list_runs)
app.command("ls", hidden=True)(runs.list_runs)
app.command("get", epilog=runs.GET_EPILOG, rich_help_panel=RUNS)(runs.get_run)
app.command("follow", epilog=follow.EPILOG, rich_help_panel=RUNS)(follow.follow_run)
app.command("logs", epilog=logs.EPILOG, rich_help_panel=RUNS)(logs.logs)
app.command("metrics", epilog=history.METRICS_EPILOG, rich_help_panel=RUNS)(history.metrics)
app.command("rollouts", epilog=history.ROLLOUTS_EPILOG, rich_help_panel=RUNS)(history.rollouts)
app.command("stop", epilog=runs.STOP_EPILOG, rich_help_panel=RUNS)(runs.stop_run)
app.command("delete", epilog=runs.DELETE_EPILOG, rich_help_panel=RUNS)(runs.delete_run)
app.command("models", epilog=artifacts.MODELS_EPILOG, rich_help_panel=CATALOG)(artifacts.models)
app.command("checkpoints", epilog=artifacts.CHECKPOINTS_EPILOG, rich_help_panel=CATALOG)(artifacts.checkpoints)
app.command("adapters", epilog=artifacts.ADAPTERS_EPILOG, rich_help_panel=CATALOG)(artifacts.adapters)
app.command("download", epilog=download.EPILOG, rich_help_panel=CATALOG)(download.download)
app.command("gc", epilog=gc.EPILOG, rich_help_panel=CATALOG)(gc.gc)
app.add_typer(environments.env, name="env", rich_help_panel=CATALOG)
app.add_typer(keys.key, name="key", rich_help_panel=CATALOG)
