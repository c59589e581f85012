"""What every command shares: the options that choose a cluster, and the doors to it and to S3.

The options may stand before or after the command's name, as with kubectl; after wins. Tests put their own doors in.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun_cli.remote.cluster import RemoteCluster

if TYPE_CHECKING:
    from rlrun.storage.store import Store

PANEL = "Cluster"
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Path of the kubeconfig file.", rich_help_panel=PANEL)
]
Context = Annotated[str | None, typer.Option("--context", help="Kubeconfig context to use.", rich_help_panel=PANEL)]
Namespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Namespace; else the context's.", rich_help_panel=PANEL)
]


def _open_store(endpoint: str | None) -> "Store":
    from rlrun.storage.store import Store  # boto3 is slow to import, and only `env push` needs it

    return Store(endpoint_url=endpoint)


@dataclass
class CliContext:
    """Choices given before the command's name, and the doors."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    connect: Callable[[Path | None, str | None, str | None], RemoteCluster] = RemoteCluster.connect
    store: "Callable[[str | None], Store]" = _open_store
    sleep: Callable[[float], None] = field(default=time.sleep)


def session(ctx: typer.Context) -> CliContext:
    """The session of this invocation."""
    found: CliContext = ctx.ensure_object(CliContext)
    return found


def cluster(ctx: typer.Context, kubeconfig: Path | None, context: str | None, namespace: str | None) -> RemoteCluster:
    """The chosen cluster; nothing is sent yet. Raises CliError when the kubeconfig is not usable."""
    given = session(ctx)
    return given.connect(kubeconfig or given.kubeconfig, context or given.context, namespace or given.namespace)
