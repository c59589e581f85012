"""Commands `key create`, `key list` and `key delete`: manage API keys for programs without a Kubernetes login."""

import re
from typing import Annotated

import typer
from rlrun.protocol.api_keys import (
    DEFAULT_DAYS,
    ID_PATTERN,
    KEY_PATTERN,
    KEYS_AUDIENCE,
    MAX_DAYS,
    MAX_DESCRIPTION,
    PRINTABLE,
    NewApiKey,
)

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.api_keys import ApiKeys
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_storage import s3_operation
from rlrun_cli.remote.server import Server, find_server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

CREATE_KEY_EPILOG = """Examples:

  rlrun key create -n team --description "CI of our environments" --days 30

Prints the key, which is not shown again. Programs read it from RLRUN_API_KEY, and the URL of rlrun-server from \
RLRUN_SERVER. The key has the rights of the namespace's ServiceAccount rlrun-user. Requires `create \
serviceaccounts/token` for this account."""
LIST_KEYS_EPILOG = """Examples:

  rlrun key list -n team
  rlrun key list -o json"""
DELETE_KEY_EPILOG = """Examples:

  rlrun key delete 3q5wnyvkxo4a -n team

rlrun-server rejects a deleted key within 15 seconds."""


def _keys(api: RemoteCluster, server: str | None) -> ApiKeys:
    return ApiKeys(find_server(api, server, KEYS_AUDIENCE), api.namespace)


@with_cluster
def create_key(
    api: RemoteCluster,
    description: Annotated[str, typer.Option(help="Purpose of the key, shown by `key list`.")] = "",
    days: Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="Days until the key expires.")] = DEFAULT_DAYS,
    server: Server = None,
) -> None:
    """Create an API key for the namespace and print it."""
    if len(description) > MAX_DESCRIPTION or not re.fullmatch(PRINTABLE, description):
        raise CliError(
            f"--description: the text of {len(description)} characters is too long or contains control characters",
            f"write at most {MAX_DESCRIPTION} printable characters on one line",
            code=INVALID,
        )
    with s3_operation(f"create an API key for namespace {api.namespace}"):
        made = _keys(api, server).create(NewApiKey(description=description, days=days))
    output.notice(f"Created key {made.id} for namespace {made.namespace}; it expires at {made.expires}. Save it now:")
    typer.echo(made.key)


@with_cluster
def list_keys(
    api: RemoteCluster,
    fmt: Output = None,
    server: Server = None,
) -> None:
    """List the API keys of the namespace."""
    with s3_operation(f"list the API keys of namespace {api.namespace}"):
        keys = _keys(api, server).list()
    if fmt:
        output.emit_values([found.to_json_dict() for found in keys], "id", fmt)
        return
    if not keys:
        output.notice(f"No API keys in namespace {api.namespace}. Create one: rlrun key create -n {api.namespace}")
        return
    rows = [[found.id, found.owner, found.created, found.expires, found.description] for found in keys]
    output.print_table(["ID", "CREATED BY", "CREATED", "EXPIRES", "DESCRIPTION"], rows)


@with_cluster
def delete_key(
    api: RemoteCluster,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key: the part after rlk_.")],
    server: Server = None,
) -> None:
    """Delete an API key. rlrun-server rejects it within 15 seconds."""
    # A full key in a URL would appear in the logs of every server on the way.
    match = re.fullmatch(f"({ID_PATTERN})", key_id) or re.fullmatch(KEY_PATTERN, key_id)
    if match is None:
        raise CliError("the argument ID is not the id of an API key", "list the ids: rlrun key list", code=INVALID)
    key_id = match[1]
    with s3_operation(f"delete API key {key_id} in namespace {api.namespace}"):
        deleted = _keys(api, server).delete(key_id)
    typer.echo(f"API key {deleted.id} deleted")
