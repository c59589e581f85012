"""Options shared by all commands, and factories for cluster and S3 clients.

As in kubectl, the options may precede or follow the command's name; those that follow it take precedence.
"""

import inspect
import os
import time
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun_cli.terminal.errors import CliError

if TYPE_CHECKING:
    from rlrun.api.base.addressing_style import AddressingStyle
    from rlrun.storage.store import Store
    from rlrun.storage.user_signer import Send

    from rlrun_cli.remote.cluster import RemoteCluster
    from rlrun_cli.remote.server import RemoteStorage

PANEL = "Cluster"
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="Path of the kubeconfig. Default: KUBECONFIG, then ~/.kube/config.", rich_help_panel=PANEL
    ),
]
Context = Annotated[
    str | None,
    typer.Option("--context", help="Context of the kubeconfig. Default: the current context.", rich_help_panel=PANEL),
]
Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", help="Namespace. Default: the context's namespace.", rich_help_panel=PANEL),
]


def _connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> "RemoteCluster":
    from rlrun_cli.remote.cluster import RemoteCluster  # option modules must not import the API models

    return RemoteCluster.connect(kubeconfig, context, namespace)


def _connect_server(kubeconfig: Path | None, context: str | None, namespace: str | None) -> "RemoteCluster":
    from rlrun_cli.remote.cluster import RemoteCluster

    return RemoteCluster.connect(kubeconfig, context, namespace, has_server=True)


def _open_store(endpoint: str | None, style: "AddressingStyle | None") -> "Store":
    from rlrun.storage.store import Store, read_connection  # boto3 is slow to import, and few commands need it

    chosen = {name: value for name, value in {"endpoint": endpoint, "addressing_style": style}.items() if value}
    return Store(read_connection(os.environ).model_copy(update=chosen))


def _open_storage(cluster: "RemoteCluster", server: str | None) -> "RemoteStorage":
    from rlrun_cli.remote.server import open_storage

    return open_storage(cluster, server)


def _find_server(cluster: "RemoteCluster", server: str | None) -> "Send":
    from rlrun_cli.remote.server import find_server

    return find_server(cluster, server)


@dataclass
class CliContext:
    """Options that precede the command's name, and factories for clients. Tests replace the factories."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    connect: "Callable[[Path | None, str | None, str | None], RemoteCluster]" = _connect
    connect_server: "Callable[[Path | None, str | None, str | None], RemoteCluster]" = _connect_server
    """Factory like `connect`, for commands that can work without a kubeconfig."""
    store: "Callable[[str | None, AddressingStyle | None], Store]" = _open_store
    """Factory for a store that uses the S3 credentials of this machine, for the platform team."""
    storage: "Callable[[RemoteCluster, str | None], RemoteStorage]" = _open_storage
    """Factory for a user's storage, opened through rlrun-server."""
    server: "Callable[[RemoteCluster, str | None], Send]" = _find_server
    """Factory for the function that sends requests to rlrun-server."""
    sleep: Callable[[float], None] = field(default=time.sleep)
    clock: Callable[[], float] = field(default=time.monotonic)


def cli_context(ctx: typer.Context) -> CliContext:
    """Return the context of this invocation."""
    context: CliContext = ctx.ensure_object(CliContext)
    return context


def default_owner(
    ctx: typer.Context, kubeconfig: Path | None, context: str | None, namespace: str | None
) -> str | None:
    """Return the default owner of environments: the selected namespace, or None if no kubeconfig can be read.

    Sends no request.
    """
    if chosen := namespace or cli_context(ctx).namespace:
        return chosen
    try:
        return cluster(ctx, kubeconfig, context, None).namespace or None
    except CliError:
        return None


def cluster(ctx: typer.Context, kubeconfig: Path | None, context: str | None, namespace: str | None) -> "RemoteCluster":
    """Return the selected cluster without sending a request. Raises CliError if the kubeconfig is not usable."""
    given = cli_context(ctx)
    return given.connect(kubeconfig or given.kubeconfig, context or given.context, namespace or given.namespace)


Command = Callable[..., None]


def with_options(
    name: str, opener: Callable[..., AbstractContextManager[object]], without: Container[str] = ()
) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of `opener` to a command, which receives the opened object as `name`.

    If the command declares an option of `opener` itself, both receive its value. Options in `without` are not added and
    keep their defaults.
    """

    def decorate(command: Command) -> Command:
        own = [parameter for parameter in _parameters(command) if parameter.name != name]
        declared = {parameter.name for parameter in own}
        shared = [parameter for parameter in _parameters(opener) if parameter.name not in without]
        added = [parameter for parameter in shared if parameter.name not in declared]

        def call(**given: Any) -> None:
            selection = {p.name: given[p.name] if p.name in declared else given.pop(p.name) for p in shared}
            with opener(**selection) as opened:
                command(**{name: opened}, **given)

        # Typer reads a command's options from its signature. Parameters without a default come first.
        parameters = sorted([*own, *added], key=lambda p: p.default is not p.empty)
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        call.__name__, call.__doc__ = command.__name__, command.__doc__
        return call

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@contextmanager
def _open_cluster(
    ctx: typer.Context,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> "Iterator[RemoteCluster]":
    yield cluster(ctx, kubeconfig, context, namespace)


with_cluster = with_options("api", _open_cluster)
"""Decorator that adds the options that select cluster and namespace. The command receives the cluster as `api`."""
with_cluster_only = with_options("api", _open_cluster, without=("namespace",))
"""Decorator like `with_cluster`, for a command whose objects have no namespace."""
