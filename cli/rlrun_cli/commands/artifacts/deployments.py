"""Commands `adapters deploy` and `adapters undeploy`."""

import typer
from rlrun.kube.kinds import RLADAPTER
from rlrun.kube.objects import Obj

from rlrun_cli.commands.artifacts.artifacts import ArtifactName, deployment_state, status_of
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import cli_context, with_cluster
from rlrun_cli.remote.waiting import DEFAULT_SECONDS, Timeout, Wait, wait_for
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError

DEPLOY_ADAPTER_EPILOG = """Examples:

  rlrun adapters deploy reverse-text-x7k2p-step-000030-842409bd --wait

Prints the model's name, the URL of its OpenAI API, and the Secret with its API key (OPENAI_API_KEY). Pods in the \
namespace can reach the URL; from elsewhere, use rlrun chat or rlrun-server's /v1. A deployed adapter is exempt from \
retention."""
UNDEPLOY_ADAPTER_EPILOG = """Examples:

  rlrun adapters undeploy reverse-text-x7k2p-step-000030-842409bd --wait"""


@with_cluster
def deploy_adapter(
    ctx: typer.Context,
    api: RemoteCluster,
    name: ArtifactName,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_SECONDS,
) -> None:
    """Serve an adapter through an OpenAI-compatible API."""
    item = api.get(RLADAPTER, name)
    phase = status_of(item).get("phase") or "Pending"
    if phase != "Ready":
        cause = f": {message}" if (message := status_of(item).get("message")) else ""
        raise CliError(
            f"{name} is {phase}, not Ready, and cannot be deployed{cause}",
            f"watch its phase, and deploy it once it is Ready: rlrun adapters get {name} -n {api.namespace} -w",
        )
    if item["spec"].get("deployed"):
        output.notice(f"{name} already has spec.deployed set ({deployment_state(item)}); nothing changed.")
    else:
        api.patch(RLADAPTER, name, {"spec": {"deployed": True}})
        typer.echo(f"rladapters.rlrun.dev/{name} deploying")
    if not wait:
        output.notice(f"See its state: rlrun adapters get {name} -n {api.namespace}")
        return
    served = status_of(_wait_for_state(ctx, api, name, "Deployed", "DeployFailed", timeout, goal="deployed"))
    typer.echo(f"rladapters.rlrun.dev/{name} deployed")
    for label, field in (("Model", "deploymentModel"), ("URL", "deploymentUrl"), ("Secret", "deploymentSecret")):
        output.notice(f"{label + ':':<8}{served.get(field) or '-'}")
    output.notice(f"Chat with it: rlrun chat {name} -n {api.namespace}")


@with_cluster
def undeploy_adapter(
    ctx: typer.Context,
    api: RemoteCluster,
    name: ArtifactName,
    wait: Wait = False,
    timeout: Timeout = DEFAULT_SECONDS,
) -> None:
    """Stop serving an adapter."""
    item = api.get(RLADAPTER, name)
    if not item["spec"].get("deployed"):
        output.notice(f"{name} has spec.deployed unset ({deployment_state(item)}); nothing changed.")
    else:
        api.patch(RLADAPTER, name, {"spec": {"deployed": False}})
        typer.echo(f"rladapters.rlrun.dev/{name} unloading")
    if wait:
        _wait_for_state(ctx, api, name, "NotDeployed", "UnloadFailed", timeout, goal="undeployed")
        typer.echo(f"rladapters.rlrun.dev/{name} undeployed")


def _wait_for_state(
    ctx: typer.Context, api: RemoteCluster, name: str, wanted: str, failed: str, seconds: int, *, goal: str
) -> Obj:
    hint = f"see the cause: rlrun adapters get {name} -n {api.namespace}"

    def is_done(item: Obj) -> bool:
        state = deployment_state(item)
        if state == failed:
            cause = status_of(item).get("deploymentMessage") or "no cause was reported"
            raise CliError(f"{name} is {state}: {cause}", hint)
        return state == wanted

    given = cli_context(ctx)
    return wait_for(api, RLADAPTER, name, is_done, seconds, given.sleep, given.clock, goal=goal, hint=hint)
