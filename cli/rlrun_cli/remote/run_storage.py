"""How commands reach S3: the options that name the bucket, and where a run's files are.

Keys come from the usual AWS_* variables. Bucket and prefix are the operator's settings; of a run that has made an
artifact they need not be given, because the artifact's address says where all its files are.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN
from rlrun.kube.objects import Obj
from rlrun.storage.layout import RunLayout, S3Uri

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import session
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

if TYPE_CHECKING:
    from rlrun.storage.store import Store

PANEL = "S3"
Bucket = Annotated[
    str, typer.Option(envvar="RLRUN_S3_BUCKET", help="Bucket of the operator's settings.", rich_help_panel=PANEL)
]
Prefix = Annotated[
    str, typer.Option(envvar="RLRUN_S3_PREFIX", help="Prefix of the operator's settings.", rich_help_panel=PANEL)
]
Endpoint = Annotated[
    str | None,
    typer.Option(envvar="AWS_ENDPOINT_URL_S3", help="S3 endpoint; AWS itself if not given.", rich_help_panel=PANEL),
]
DEPTH = 2
"""Folders between a run's root and the files of an artifact: `checkpoints/step-000040`."""


def open_store(ctx: typer.Context, endpoint: str | None) -> "Store":
    """The door to S3; nothing is sent yet. Raises StoreError."""
    return session(ctx).store(endpoint or os.environ.get("AWS_ENDPOINT_URL"))


@contextmanager
def s3_asked(what: str) -> Iterator[None]:
    """Says what went wrong in S3 as a CliError; `what` follows "cannot": "read the metrics of first"."""
    from rlrun.storage.store import StoreError

    try:
        yield
    except StoreError as problem:
        raise CliError(f"cannot {what}: {problem}") from problem


def layout_of(api: RemoteCluster, name: str, bucket: str, prefix: str) -> RunLayout:
    """Where the files of a run are, also of one that is deleted, as long as an artifact of it is left.

    Raises NotFoundError when there is neither run nor artifact, CliError when nothing says which bucket it is.
    """
    try:
        run: Obj | None = api.get(RLRUN, name)
    except NotFoundError:
        run = None
    uid = run["metadata"]["uid"] if run else None
    artifacts = [
        a
        for kind in (RLCHECKPOINT, RLADAPTER)
        for a in api.list(kind)
        if (a["spec"].get("runUid") == uid if uid else a["spec"].get("runName") == name)
    ]
    if uid is None:
        uid = _only_uid(name, artifacts)
    if bucket:
        return RunLayout.of(bucket, prefix, api.namespace, uid)
    if not artifacts:
        raise CliError(
            f"{name} has made no artifact yet, so nothing here says which bucket its files are in",
            "give --bucket and --prefix, or set RLRUN_S3_BUCKET and RLRUN_S3_PREFIX",
            code=INVALID,
        )
    uri = S3Uri.parse(str(artifacts[0]["spec"]["uri"]))
    return RunLayout(S3Uri(uri.bucket, "/".join(uri.key.split("/")[:-DEPTH])))


def _only_uid(name: str, artifacts: list[Obj]) -> str:
    uids = sorted({str(a["spec"]["runUid"]) for a in artifacts})
    if not uids:
        raise NotFoundError(f"there is no run {name}, and no artifact of one", "see what there is: rlrun list -A")
    if len(uids) > 1:
        raise CliError(
            f"{name} is deleted, and {len(uids)} deleted runs of that name have artifacts",
            "see them with their addresses: rlrun checkpoints " + name,
        )
    return uids[0]
