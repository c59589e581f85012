"""Commands `login`, `logout` and `whoami`: manage and show the user's login to rlrun-server."""

import contextlib
import re
import socket
import sys
import time
from typing import Annotated, Any

import typer
from rlrun.protocol.api_keys import DEFAULT_DAYS, KEY_PATTERN, KEYS_AUDIENCE, MAX_DAYS, NewApiKey

from rlrun_cli.remote.api_keys import ApiKeys
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context, cluster
from rlrun_cli.remote.logins import StoredLogin, find_login, keep_login, logins_file
from rlrun_cli.remote.run_storage import s3_operation
from rlrun_cli.remote.server import Server, find_server, locate_server
from rlrun_cli.remote.user_token import AccountMissingError, UserToken
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

WHOAMI_PATH = "/rlrun/v1/whoami"
LOGIN_EPILOG = """Examples:

  rlrun login
  rlrun login --server https://rlrun.example.com --key
  echo "$KEY" | rlrun login --server https://rlrun.example.com --key

A kubeconfig with a token needs no login: its token is used as is. For a kubeconfig with a client certificate, `rlrun \
login` creates an API key for the namespace, which `rlrun logout` deletes. --key asks for an existing key; with --key \
and --server, files, metrics and environment packages need no kubeconfig.

The key is stored for the selected context in ~/.config/rlrun/logins.json, which only you can read."""
LOGOUT_EPILOG = """Examples:

  rlrun logout
  rlrun logout --local

Deletes the key that `rlrun login` created; if that fails, you stay logged in. --local removes the saved key without \
deleting it. A key entered with --key stays valid; delete it with rlrun key delete."""
WHOAMI_EPILOG = """Examples:

  rlrun whoami
  rlrun whoami -o json"""
NEW_KEY_SECONDS = 1.0
"""Time in seconds after which every replica of rlrun-server accepts a new key."""
Days = Annotated[int, typer.Option(min=1, max=MAX_DAYS, help="Days until a newly created key expires.")]


def login(
    ctx: typer.Context,
    key: Annotated[bool, typer.Option("--key", help="Ask for an API key, or read it from standard input.")] = False,
    days: Days = DEFAULT_DAYS,
    server: Server = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Log in to rlrun-server and save the login on this machine."""
    api = _cluster(ctx, kubeconfig, context, namespace, has_server=key and server is not None)
    given = _read_key() if key else ""
    before = find_login(api.login_name)
    with s3_operation("log in"):
        stored = StoredLogin(server or "", given) if given or api.bearer() else _create_login(api, server, days)
        try:
            identity = _identity(api, server, stored)
            if stored.key and not stored.key_id:
                stored = StoredLogin(stored.server, stored.key, namespace=str(identity.get("namespace") or ""))
            keep_login(api.login_name, stored if stored.server or stored.key else None)
        except BaseException:
            if stored.key_id:
                _try_to_delete(api, server or "", stored)
            raise
    typer.echo(f"logged in as {identity['name']}")
    if stored.key:
        output.notice(f"The key is stored in {logins_file()}.")
    else:
        output.notice("Your kubeconfig has a token, which is used as is. No key is stored.")
    if before is not None and before.key_id:
        _try_to_delete(api, server or before.server, before)


def logout(
    ctx: typer.Context,
    local: Annotated[bool, typer.Option("--local", help="Only remove the saved key, which stays valid.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Remove the saved login and delete the API key it created."""
    api = _cluster(ctx, kubeconfig, context, namespace, has_server=False)
    stored = find_login(api.login_name)
    if stored is None:
        output.notice("You are not logged in.")
        return
    if stored.key_id and local:
        _warn_of_key(stored, "stays valid until it expires.")
    elif stored.key_id:
        try:
            with s3_operation(f"delete key {stored.key_id} in namespace {stored.namespace}"):
                _delete_key(api, stored.server, stored)
        except CliError as problem:
            only_here = "to remove only the saved key: rlrun logout --local"
            problem.hint = f"{problem.hint}; {only_here}" if problem.hint else only_here
            raise
    keep_login(api.login_name, None)
    typer.echo("logged out")


def whoami(
    ctx: typer.Context,
    fmt: Annotated[
        output.Format | None, typer.Option("-o", "--output", help="Print machine-readable output: json, yaml or name.")
    ] = None,
    server: Server = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the identity that rlrun-server sees."""
    api = cluster(ctx, kubeconfig, context, namespace)
    with s3_operation("read your identity"):
        identity = find_server(api, server)("GET", WHOAMI_PATH, None)
    if fmt is output.Format.name:
        typer.echo(identity["name"])
    elif fmt:
        output.emit_document(identity, fmt)
    else:
        facts = [
            ("User", identity["name"]),
            ("Groups", ", ".join(identity.get("groups") or [])),
            ("API key", identity.get("apiKey")),
            ("Namespace", identity.get("namespace")),
        ]
        for label, value in facts:
            if value:
                output.out().print(output.fact(label, value, 11))


def _cluster(ctx: typer.Context, *selected: Any, has_server: bool) -> RemoteCluster:
    given = cli_context(ctx)
    kubeconfig, context, namespace = selected
    if has_server:
        return given.connect_server(
            kubeconfig or given.kubeconfig, context or given.context, namespace or given.namespace
        )
    return cluster(ctx, kubeconfig, context, namespace)


def _read_key() -> str:
    """Return the key that the user types or pipes. If it is no API key, raises CliError that does not quote it."""
    text = typer.prompt("API key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    key = str(text).strip()
    if not re.fullmatch(KEY_PATTERN, key):
        raise CliError(
            f"the input ({len(key)} characters) is not an API key",
            "enter one line as printed by `rlrun key create`",
            code=INVALID,
        )
    return key


def _create_login(api: RemoteCluster, server: str | None, days: int) -> StoredLogin:
    """Create an API key for the namespace. Raises CliError, StoreError."""
    asked = NewApiKey(description=f"rlrun login on {socket.gethostname()[:100]}", days=days)
    made = _keys(api, server, api.namespace).create(asked)
    return StoredLogin(server or "", made.key, made.id, made.namespace)


def _keys(api: RemoteCluster, server: str | None, namespace: str) -> ApiKeys:
    token = UserToken(api.of_namespace(namespace), KEYS_AUDIENCE, with_key=False)
    return ApiKeys(locate_server(api, server, token=token).send, namespace)


def _identity(api: RemoteCluster, server: str | None, login: StoredLogin) -> dict[str, Any]:
    """Return the identity that rlrun-server sees for a login. Tries a new key twice. Raises CliError, StoreError."""
    found = locate_server(api, server, token=lambda: login.key or api.bearer())
    try:
        identity: dict[str, Any] = found.send("GET", WHOAMI_PATH, None)
    except CliError:
        if not login.key_id:
            raise
        time.sleep(NEW_KEY_SECONDS)
        identity = found.send("GET", WHOAMI_PATH, None)
    return identity


def _delete_key(api: RemoteCluster, server: str, login: StoredLogin) -> None:
    """Delete the key that a login created. Ignores a missing key or ServiceAccount. Raises CliError, StoreError."""
    from rlrun.storage.errors import NotFound

    with contextlib.suppress(NotFound, AccountMissingError):
        _keys(api, server or None, login.namespace).delete(login.key_id)


def _try_to_delete(api: RemoteCluster, server: str, login: StoredLogin) -> None:
    """Delete the key that a login created. Prints a warning if that fails."""
    from rlrun.storage.errors import StoreError

    try:
        _delete_key(api, server, login)
    except (CliError, StoreError) as problem:
        _warn_of_key(login, f"was not deleted: {problem}")


def _warn_of_key(login: StoredLogin, what: str) -> None:
    output.notice(f"Warning: key {login.key_id} in namespace {login.namespace} {what}")
    output.notice(f"Delete it: rlrun key delete {login.key_id} -n {login.namespace}")
