"""Command `download`: copies a checkpoint or an adapter from S3 to a local folder and verifies it."""

from pathlib import Path
from typing import Annotated

import typer
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT
from rlrun.kube.objects import Obj
from rlrun.storage.layout import S3Uri

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_storage import open_user_storage, s3_operation
from rlrun_cli.remote.server import Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

DOWNLOAD_EPILOG = """Examples:

  rlrun download reverse-text-x7k2p-step-000030-842409bd adapter/
  rlrun download s3://rlrun/team/842409bd-.../adapters/step-000030 adapter/

Verifies the manifest against status.digest of the adapter or checkpoint, and the size and SHA-256 of every file \
against the manifest. DIR is created only if all files match. Requires `get rladapters/files` or `get \
rlcheckpoints/files` in the artifact's namespace."""


KINDS_BY_FOLDER = {"adapters": RLADAPTER, "checkpoints": RLCHECKPOINT}


def find(api: RemoteCluster, name: str) -> Obj:
    """Return the adapter with this name, or else the checkpoint with this name. Raises NotFoundError."""
    for kind in (RLADAPTER, RLCHECKPOINT):
        try:
            return api.get(kind, name)
        except NotFoundError:
            continue
    raise NotFoundError(
        f"no adapter or checkpoint is named {name} in namespace {api.namespace}",
        "list them: rlrun adapters; rlrun checkpoints",
    )


def find_by_uri(api: RemoteCluster, uri: S3Uri) -> Obj | None:
    """Return the checkpoint or adapter with this URI, or None if it does not exist or the user cannot list it."""
    *_, namespace, _, folder, _ = ("", "", "", "", *uri.key.split("/"))
    kind = KINDS_BY_FOLDER.get(folder)
    if kind is None or not namespace:
        return None
    try:
        objects = api.of_namespace(namespace).list(kind)
    except CliError:
        # An API key, or only the right to read files, is enough for a download.
        return None
    return next((obj for obj in objects if obj["spec"].get("uri") == str(uri)), None)


@with_cluster
def download(
    ctx: typer.Context,
    api: RemoteCluster,
    name: Annotated[str, typer.Argument(metavar="NAME|URI", help="Adapter or checkpoint: its name or s3:// URI.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Target folder, which must be empty or not exist.")],
    kind: Annotated[
        str | None, typer.Option("--kind", help="adapter or checkpoint, if both have this name. Default: adapter.")
    ] = None,
    server: Server = None,
) -> None:
    """Download an adapter or a checkpoint and verify it against its manifest."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CliError(f"{folder} already exists and is not an empty folder", "specify a new folder", code=INVALID)
    kinds = {"adapter": RLADAPTER, "checkpoint": RLCHECKPOINT}
    if kind is not None and kind not in kinds:
        raise CliError(f"--kind: {kind!r} is not valid", "use adapter or checkpoint", code=INVALID)
    obj = None
    if name.startswith("s3://"):
        location = name
    else:
        obj = api.get(kinds[kind], name) if kind else find(api, name)
        location = str(obj["spec"]["uri"])
    try:
        uri = S3Uri.parse(location)
    except ValueError as problem:
        raise CliError(
            str(problem), "use a URI as listed by rlrun adapters or rlrun checkpoints", code=INVALID
        ) from problem
    obj = obj or find_by_uri(api, uri)
    digest = str(((obj or {}).get("status") or {}).get("digest") or "")
    if not digest:
        why = "the object has no status.digest" if obj else "you cannot read any adapter or checkpoint with this URI"
        output.notice(
            f"{why}: the files are verified only against their manifest, which anyone with write access to the bucket "
            "can replace"
        )
    with s3_operation(f"download {location}"):
        manifest = open_user_storage(ctx, api, server).store.download(uri, folder.resolve(), digest=digest)
    typer.echo(
        f"{manifest.kind.value} of step {manifest.step}: {len(manifest.files)} files, "
        f"{output.size(manifest.size)}, verified against the manifest, in {folder}"
    )
