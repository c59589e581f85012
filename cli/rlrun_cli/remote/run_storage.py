"""Gives commands access to S3, and locates a run's files.

For users' commands, rlrun-server signs the requests and says where the files are (`remote.server`). The platform team's
commands use this machine's AWS credentials, and options that select the bucket.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rlrun.api.base.addressing_style import VARIABLE as ADDRESSING_VARIABLE
from rlrun.api.base.addressing_style import AddressingStyle
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN
from rlrun.kube.objects import Obj
from rlrun.storage.layout import RunLayout, S3Uri

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context, cluster, with_options
from rlrun_cli.remote.server import RemoteStorage, Server
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

if TYPE_CHECKING:
    from rlrun.garbage_collection.sweep import Sweep
    from rlrun.storage.store import Store

PANEL = "S3"
Bucket = Annotated[
    str, typer.Option(envvar="RLRUN_S3_BUCKET", help="Bucket: s3.bucket in the chart.", rich_help_panel=PANEL)
]
Prefix = Annotated[
    str,
    typer.Option(envvar="RLRUN_S3_PREFIX", help="Path in the bucket: s3.prefix in the chart.", rich_help_panel=PANEL),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        envvar="RLRUN_S3_ENDPOINT",
        help="URL of the S3 service: s3.endpoint in the chart. Default: as configured for S3 tools on this machine.",
        rich_help_panel=PANEL,
    ),
]

Addressing = Annotated[
    AddressingStyle | None,
    typer.Option(
        "--addressing-style",
        envvar=ADDRESSING_VARIABLE,
        help="Place of the bucket in URLs, path or host name: s3.addressingStyle in the chart. Default: path.",
        rich_help_panel=PANEL,
    ),
]


def open_store(ctx: typer.Context, endpoint: str | None, style: AddressingStyle | None) -> "Store":
    """Return an S3 client with this machine's AWS credentials, without sending a request. Raises StoreError."""
    return cli_context(ctx).store(endpoint, style)


def open_user_storage(ctx: typer.Context, api: RemoteCluster, server: str | None) -> RemoteStorage:
    """Return the storage that rlrun-server lets the user access. Raises CliError, StoreError."""
    return cli_context(ctx).storage(api, server)


@dataclass(frozen=True)
class RunFiles:
    """Files of one run in S3."""

    layout: RunLayout
    store: "Store"


@contextmanager
def _open_run_files(
    ctx: typer.Context,
    name: str,
    server: Server = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> Iterator[RunFiles]:
    api = cluster(ctx, kubeconfig, context, namespace)
    uid = find_run_uid(api, name)
    with s3_operation(f"find the files of {name}"):
        storage = open_user_storage(ctx, api, server)
    yield RunFiles(run_layout(api, storage, uid), storage.store)


@contextmanager
def _open_sweep(
    ctx: typer.Context,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    addressing_style: Addressing = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> "Iterator[Sweep]":
    from rlrun.garbage_collection.installation import InstallationMismatch
    from rlrun.garbage_collection.sweep import Sweep, SweepStopped
    from rlrun.kube.errors import ApiError
    from rlrun.storage.store import StoreError

    if not bucket:
        raise CliError("no bucket is selected", "add --bucket, or set RLRUN_S3_BUCKET", code=INVALID)
    target = namespace or cli_context(ctx).namespace
    source = cluster(ctx, kubeconfig, context, namespace).garbage_source()
    try:
        store = open_store(ctx, endpoint, addressing_style)
        yield Sweep(store, source, S3Uri(bucket, prefix.strip("/")), frozenset([target] if target else []))
    except (InstallationMismatch, SweepStopped) as problem:
        raise CliError(str(problem)) from problem
    except (StoreError, ApiError) as problem:
        advice = "nothing was deleted; try again when S3 and the cluster both respond"
        raise CliError(str(problem), advice) from problem


with_run_files = with_options("files", _open_run_files)
"""Decorator that adds the options that select a run's files. The command receives the files as `files`, and the run's
name as `name`.
"""
with_sweep = with_options("sweep", _open_sweep)
"""Decorator that adds the options that select bucket and cluster. The command receives a `Sweep` of both as `sweep`.

InstallationMismatch, SweepStopped, StoreError and ApiError become a CliError.
"""


@contextmanager
def s3_operation(action: str) -> Iterator[None]:
    """Convert a StoreError to a CliError. `action` completes "cannot ...", as in "read the metrics of my-run"."""
    from rlrun.storage.errors import AccessDenied, StorageServerUnavailable
    from rlrun.storage.store import StoreError, Unreachable

    try:
        yield
    except StorageServerUnavailable as problem:
        raise CliError(f"cannot {action}: {problem}", "try again, or ask the platform team") from problem
    except Unreachable as problem:
        raise CliError(
            f"cannot {action}: {problem}",
            "if this machine can never reach that endpoint, ask the platform team to set s3.publicEndpoint in the "
            "chart",
        ) from problem
    except AccessDenied as problem:
        raise CliError(
            f"cannot {action}: {problem}",
            "ask for the `edit` role (or `view` for read-only access) in the namespace; rlrun doctor shows your rights",
        ) from problem
    except StoreError as problem:
        raise CliError(f"cannot {action}: {problem}") from problem


def run_layout(api: RemoteCluster, storage: RemoteStorage, uid: str) -> RunLayout:
    """Return the location of a run's files. The run is in the selected namespace and has this UID."""
    return RunLayout.of(storage.bucket, storage.prefix, api.namespace, uid)


def find_run_uid(api: RemoteCluster, name: str) -> str:
    """Return the UID of a run. A deleted run can be found for as long as one of its checkpoints or adapters exists.

    Raises NotFoundError if no such object exists, and CliError if several deleted runs have this name.
    """
    try:
        return str(api.get(RLRUN, name)["metadata"]["uid"])
    except NotFoundError:
        artifacts = [
            a for kind in (RLCHECKPOINT, RLADAPTER) for a in api.list(kind) if a["spec"].get("runName") == name
        ]
        return _only_uid(name, artifacts)


def _only_uid(name: str, artifacts: list[Obj]) -> str:
    uids = sorted({str(a["spec"]["runUid"]) for a in artifacts})
    if not uids:
        raise NotFoundError(
            f"run {name} does not exist, and none of its checkpoints or adapters remains",
            "list existing runs: rlrun list -A",
        )
    if len(uids) > 1:
        raise CliError(
            f"{name} is ambiguous: {len(uids)} deleted runs with that name still have checkpoints or adapters",
            f"download an artifact by its URI instead, as listed by: rlrun checkpoints {name}; rlrun adapters {name}",
        )
    return uids[0]
