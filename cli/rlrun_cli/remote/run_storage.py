"""S3 access of the commands: options that select the bucket, and the location of a run's files.

Credentials come from the AWS_* variables. Bucket and prefix are those of the operator's settings; they may be omitted
for a run that has an artifact, because the URI of the artifact contains the location of all files of its run.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN
from rlrun.kube.objects import Obj
from rlrun.storage.layout import RunLayout, S3Uri

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context, cluster
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

if TYPE_CHECKING:
    from rlrun.storage.store import Store

PANEL = "S3"
Bucket = Annotated[
    str, typer.Option(envvar="RLRUN_S3_BUCKET", help="Bucket: s3.bucket of the chart.", rich_help_panel=PANEL)
]
Prefix = Annotated[
    str,
    typer.Option(envvar="RLRUN_S3_PREFIX", help="Path in the bucket: s3.prefix of the chart.", rich_help_panel=PANEL),
]
Endpoint = Annotated[
    str | None,
    typer.Option(envvar="AWS_ENDPOINT_URL_S3", help="URL of the S3 service. Default: AWS.", rich_help_panel=PANEL),
]
ARTIFACT_DEPTH = 2
"""Number of path segments of an artifact below its run's root: `checkpoints/step-000040`."""


def open_store(ctx: typer.Context, endpoint: str | None) -> "Store":
    """Return the S3 client without sending a request. Raises StoreError."""
    return cli_context(ctx).store(endpoint or os.environ.get("AWS_ENDPOINT_URL"))


@dataclass(frozen=True)
class RunFiles:
    """Files of one run in S3."""

    layout: RunLayout
    open_store: "Callable[[], Store]"
    """Returns the S3 client without sending a request. Raises StoreError."""


def with_run_files(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select a run's files to a command. It takes the files as `files`, the run as `name`."""
    own = [parameter for parameter in _signature(command) if parameter.name != "files"]
    shared = [parameter for parameter in _signature(_find_run_files) if parameter.name != "name"]

    def extended(**given: Any) -> None:
        selection = {parameter.name: given.pop(parameter.name) for parameter in shared}
        command(files=_find_run_files(name=given["name"], **selection), **given)

    # Typer reads the options of a command from its signature.
    context, *options = shared
    parameters = [context, *own, *options]
    extended.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    extended.__name__, extended.__doc__ = command.__name__, command.__doc__
    return extended


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _find_run_files(
    ctx: typer.Context,
    name: str,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> RunFiles:
    api = cluster(ctx, kubeconfig, context, namespace)
    return RunFiles(find_run_layout(api, name, bucket, prefix), lambda: open_store(ctx, endpoint))


@contextmanager
def s3_operation(action: str) -> Iterator[None]:
    """Turn a StoreError into a CliError. `action` completes "cannot ...", for example "read the metrics of first"."""
    from rlrun.storage.store import StoreError

    try:
        yield
    except StoreError as problem:
        raise CliError(f"cannot {action}: {problem}") from problem


def find_run_layout(api: RemoteCluster, name: str, bucket: str, prefix: str) -> RunLayout:
    """Return the location of the files of a run, which may be deleted as long as one of its artifacts exists.

    Raises NotFoundError if neither run nor artifact exists, CliError if the bucket is not known.
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
            f"the bucket of {name} is not known, because the run has no checkpoint or adapter yet",
            "give --bucket and --prefix, or set RLRUN_S3_BUCKET and RLRUN_S3_PREFIX",
            code=INVALID,
        )
    uri = S3Uri.parse(str(artifacts[0]["spec"]["uri"]))
    return RunLayout(S3Uri(uri.bucket, "/".join(uri.key.split("/")[:-ARTIFACT_DEPTH])))


def _only_uid(name: str, artifacts: list[Obj]) -> str:
    uids = sorted({str(a["spec"]["runUid"]) for a in artifacts})
    if not uids:
        raise NotFoundError(
            f"no run {name} exists, nor a checkpoint or adapter of one", "list the existing runs: rlrun list -A"
        )
    if len(uids) > 1:
        raise CliError(
            f"{name} is ambiguous: {len(uids)} deleted runs of that name have artifacts",
            f"download an artifact by its URI instead, as listed by: rlrun checkpoints {name}",
        )
    return uids[0]
