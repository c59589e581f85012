"""Command `download`: copy a checkpoint or an adapter from S3 to a local folder and verify it."""

from pathlib import Path
from typing import Annotated

import typer
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT
from rlrun.kube.objects import Obj
from rlrun.storage.layout import S3Uri

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster
from rlrun_cli.remote.run_storage import open_user_storage, s3_operation
from rlrun_cli.remote.server import Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

EPILOG = """Examples:

  rlrun download reverse-text-x7k2p-step-000030-842409bd adapter/
  rlrun download s3://rlrun/team/842409bd-.../adapters/step-000030 adapter/

Size and SHA-256 of every file are compared with the manifest. DIR is created only if all files match. Needs \
`get rladapters/files` or `get rlcheckpoints/files` in the namespace of the artifact."""


def find(api: RemoteCluster, name: str) -> Obj:
    """Return the adapter with this name, else the checkpoint. Raises NotFoundError."""
    for kind in (RLADAPTER, RLCHECKPOINT):
        try:
            return api.get(kind, name)
        except NotFoundError:
            continue
    raise NotFoundError(
        f"no adapter or checkpoint is named {name} in namespace {api.namespace}",
        "list the existing ones: rlrun adapters; rlrun checkpoints",
    )


def download(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME|URI", help="Adapter or checkpoint: its name or s3:// URI.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Target folder; must not exist, or be empty.")],
    kind: Annotated[
        str | None, typer.Option("--kind", help="adapter or checkpoint, if both have this name. Default: the adapter.")
    ] = None,
    server: Server = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Download an adapter or a checkpoint and verify it against its manifest."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CliError(f"{folder} already exists and is not an empty folder", "name a new folder", code=INVALID)
    kinds = {"adapter": RLADAPTER, "checkpoint": RLCHECKPOINT}
    if kind is not None and kind not in kinds:
        raise CliError(f"--kind: {kind!r} is not valid", "use adapter or checkpoint", code=INVALID)
    api = cluster(ctx, kubeconfig, context, namespace)
    if name.startswith("s3://"):
        location = name
    else:
        location = str((api.get(kinds[kind], name) if kind else find(api, name))["spec"]["uri"])
    try:
        uri = S3Uri.parse(location)
    except ValueError as problem:
        raise CliError(
            str(problem), "use a URI as listed by rlrun adapters or rlrun checkpoints", code=INVALID
        ) from problem
    with s3_operation(f"download {location}"):
        manifest = open_user_storage(ctx, api, server).store.download(uri, folder.resolve())
    typer.echo(
        f"{manifest.kind.value} of step {manifest.step}: {len(manifest.files)} files, "
        f"{output.size(manifest.size)}, verified against the manifest, in {folder}"
    )
