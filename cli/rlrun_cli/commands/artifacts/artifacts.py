"""Commands `list`, `get` and `delete` for checkpoints and adapters."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text
from rlrun.api.artifact import expiry_text
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.references import checkpoint_id

from rlrun_cli.commands.listing import Choice, show_list, show_one, with_get_options, with_list_options
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.terminal import output
from rlrun_cli.terminal.confirmation import Yes, confirm
from rlrun_cli.terminal.errors import CliError, NotFoundError

LIST_CHECKPOINTS_EPILOG = """Examples:

  rlrun checkpoints
  rlrun checkpoints reverse-text-x7k2p --sort-by .status.reward
  rlrun checkpoints -A -o wide

To start a run from a checkpoint, set checkpoint_id in its file to the checkpoint's name or id. A run in another \
namespace must use the id, and the checkpoint's spec.sharedWith must list that namespace."""
LIST_ADAPTERS_EPILOG = """Examples:

  rlrun adapters reverse-text-x7k2p
  rlrun adapters -w
  rlrun download reverse-text-x7k2p-step-000030-842409bd adapter/"""
GET_CHECKPOINT_EPILOG = """Examples:

  rlrun checkpoints get reverse-text-x7k2p-step-000030-842409bd
  rlrun checkpoints get reverse-text-x7k2p-step-000030-842409bd -o yaml"""
GET_ADAPTER_EPILOG = """Examples:

  rlrun adapters get reverse-text-x7k2p-step-000030-842409bd
  rlrun adapters get reverse-text-x7k2p-step-000030-842409bd -o json | jq .status.deploymentUrl"""
DELETE_CHECKPOINT_EPILOG = """Examples:

  rlrun checkpoints delete reverse-text-x7k2p-step-000030-842409bd

The run's retention deletes the files in S3 or, if the run was deleted, the platform's garbage collection does. The \
newest checkpoint of an unfinished run is deleted once the run has a newer one or has ended."""
DELETE_ADAPTER_EPILOG = """Examples:

  rlrun adapters delete reverse-text-x7k2p-step-000030-842409bd

The run's retention deletes the files in S3 or, if the run was deleted, the platform's garbage collection does."""

RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="List only artifacts of this run.")]
ArtifactName = Annotated[str, typer.Argument(metavar="NAME", help="Name, as shown in the list.")]


def status_of(item: Obj) -> Obj:
    """Return the status of an object, or an empty dictionary if it has none."""
    return item.get("status") or {}


def deployment_state(item: Obj) -> str:
    """Return the state of an adapter's deployment."""
    return str(status_of(item).get("deploymentState") or "NotDeployed")


def _show(
    ctx: typer.Context, api: RemoteCluster, kind: ResourceKind, run: str | None, choice: Choice, empty: str
) -> None:
    def check(rows: list[Obj]) -> list[Obj]:
        if run is not None and not rows and not choice.watch:
            api.get(RLRUN, run)  # raises if the run does not exist
        return rows

    show_list(ctx, api, kind, choice, empty=empty, fields=f"spec.runName={run}" if run else "", order=check)


@with_cluster
@with_list_options
def list_checkpoints(ctx: typer.Context, api: RemoteCluster, choice: Choice, run: RunName = None) -> None:
    """List the checkpoints of a run or namespace. A new run can start from one."""
    _show(ctx, api, RLCHECKPOINT, run, choice, "No checkpoints yet{place}.")


@with_cluster
@with_list_options
def list_adapters(ctx: typer.Context, api: RemoteCluster, choice: Choice, run: RunName = None) -> None:
    """List the adapters of a run or namespace."""
    empty = "No adapters yet{place}. By default a run saves one after its last step."
    _show(ctx, api, RLADAPTER, run, choice, empty)


def describe(item: Obj) -> list[Text]:
    """Return the lines that `get` prints for an artifact."""
    spec, status = item["spec"], status_of(item)
    namespace, name = item["metadata"].get("namespace"), item["metadata"]["name"]
    facts: list[tuple[str, Text | str | None]] = [
        (item["kind"].removeprefix("RL"), f"{namespace}/{name}"),
        ("Id", checkpoint_id(namespace, name) if item["kind"] == RLCHECKPOINT.kind else None),
        ("Run", spec.get("runName")),
        ("Model", spec.get("model")),
        ("Step", str(spec.get("step", "-"))),
        ("Phase", output.phase(status.get("phase") or "Pending")),
        ("Message", status.get("message")),
        ("Reward", output.number(status.get("reward"))),
        ("Size", output.size(status.get("sizeBytes"))),
        ("URI", spec.get("uri")),
        ("Shared with", ", ".join(spec.get("sharedWith") or [])),
        ("Expires", status.get("expiresAt")),
        ("Age", output.age(item)),
    ]
    if item["kind"] == RLADAPTER.kind:
        facts += [
            ("Deployment", deployment_state(item)),
            ("  Message", status.get("deploymentMessage")),
            ("  Model", status.get("deploymentModel")),
            ("  URL", status.get("deploymentUrl")),
            ("  Secret", status.get("deploymentSecret")),
        ]
    return [output.fact(label, value, 13) for label, value in facts if value]


@with_cluster
@with_get_options
def get_checkpoint(ctx: typer.Context, api: RemoteCluster, name: ArtifactName, choice: Choice) -> None:
    """Show one checkpoint."""
    show_one(ctx, api, RLCHECKPOINT, name, choice, describe)


@with_cluster
@with_get_options
def get_adapter(ctx: typer.Context, api: RemoteCluster, name: ArtifactName, choice: Choice) -> None:
    """Show one adapter and its URL if it is deployed."""
    show_one(ctx, api, RLADAPTER, name, choice, describe)


@with_cluster
def delete_checkpoint(api: RemoteCluster, name: ArtifactName, yes: Yes = False) -> None:
    """Delete a checkpoint and its files in S3."""
    _delete(api, RLCHECKPOINT, name, yes=yes)


@with_cluster
def delete_adapter(api: RemoteCluster, name: ArtifactName, yes: Yes = False) -> None:
    """Delete an adapter and its files in S3. The adapter must not be deployed."""
    _delete(api, RLADAPTER, name, yes=yes)


def _delete(api: RemoteCluster, kind: ResourceKind, name: str, *, yes: bool) -> None:
    item = api.get(kind, name)
    spec = item["spec"]
    if spec.get("deployed"):
        raise CliError(f"{name} is deployed", f"undeploy it first: rlrun adapters undeploy {name} -n {api.namespace}")
    try:
        run = api.get(RLRUN, str(spec["runName"]))
    except NotFoundError:
        run = None
    confirm(f"Delete {api.namespace}/{name}?", f"{name} was not deleted", yes=yes)
    uid = item["metadata"]["uid"]
    if run is not None and run["metadata"]["uid"] == spec.get("runUid"):
        # The operator would create the object of an artifact in S3 again.
        expires_at = expiry_text(datetime.now(UTC))
        api.patch(kind, name, {"metadata": {"uid": uid}, "spec": {"expiresAt": expires_at}})
        typer.echo(f"{kind.plural}.rlrun.dev/{name} deleting")
        output.notice(f"The retention of run {spec['runName']} will delete the object and its files in S3.")
        return
    api.delete(kind, name, uid)
    typer.echo(f"{kind.plural}.rlrun.dev/{name} deleted")
    output.notice("The platform's garbage collection will delete the files in S3.")
