"""`rlrun download`: a checkpoint or an adapter on this machine, proven whole."""

from pathlib import Path
from typing import Annotated

import typer
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT
from rlrun.kube.objects import Obj
from rlrun.storage.layout import S3Uri

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster
from rlrun_cli.remote.run_storage import Endpoint, open_store, s3_asked
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

EPILOG = """Examples:

  rlrun download reverse-text-x7k2p-step-000030-842409bd adapter/

  rlrun download s3://rlrun/team/842409bd-.../adapters/step-000030 adapter/

Every file is compared with the size and SHA-256 of the manifest; DIR appears when all of them agree, or not at all.
S3 credentials come from the usual AWS_* variables."""


def find(api: RemoteCluster, name: str) -> Obj:
    """The adapter of that name, else the checkpoint. Raises NotFoundError."""
    for kind in (RLADAPTER, RLCHECKPOINT):
        try:
            return api.get(kind, name)
        except NotFoundError:
            continue
    raise NotFoundError(
        f"there is no adapter and no checkpoint {name} in namespace {api.namespace}",
        "see what there is: rlrun adapters; rlrun checkpoints",
    )


def download(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME|URI", help="An adapter, a checkpoint, or its s3:// address.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put it; must not exist yet, or be empty.")],
    kind: Annotated[
        str | None, typer.Option("--kind", help="adapter or checkpoint, where both have the name; else the adapter.")
    ] = None,
    endpoint: Endpoint = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Download an adapter or a checkpoint and prove that it is whole."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CliError(f"{folder} exists already", "name a folder that does not", code=INVALID)
    kinds = {"adapter": RLADAPTER, "checkpoint": RLCHECKPOINT}
    if kind is not None and kind not in kinds:
        raise CliError(f"--kind: {kind!r} is none of adapter, checkpoint", code=INVALID)
    if name.startswith("s3://"):
        address = name
    else:
        api = cluster(ctx, kubeconfig, context, namespace)
        address = str((api.get(kinds[kind], name) if kind else find(api, name))["spec"]["uri"])
    try:
        uri = S3Uri.parse(address)
    except ValueError as problem:
        raise CliError(str(problem), code=INVALID) from problem
    with s3_asked(f"download {address}"):
        manifest = open_store(ctx, endpoint).download(uri, folder.resolve())
    typer.echo(
        f"{manifest.kind.value} of step {manifest.step}: {len(manifest.files)} files, "
        f"{output.size(manifest.size)}, all as in its manifest, in {folder}"
    )
