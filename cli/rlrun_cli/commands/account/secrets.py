"""Commands `secret list`, `secret set` and `secret delete`: manage Secrets that runs name in `envFrom`.

Values are read from standard input, files or a prompt. No message, argument or listing contains a value.
"""

import base64
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rlrun.constants import CLI_FIELD_MANAGER, MANAGED_BY_LABEL, RUN_LABEL
from rlrun.kube.kinds import RLRUN, SECRET
from rlrun.kube.objects import Obj

from rlrun_cli.commands.runs import Output
from rlrun_cli.inputs.variables import MAX_SECRET_BYTES, NAME, read_files
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_data.run_summary import summarize
from rlrun_cli.terminal import output
from rlrun_cli.terminal.confirmation import Yes, confirm
from rlrun_cli.terminal.errors import INVALID, CliError, NotFoundError

LIST_SECRETS_EPILOG = """Examples:

  rlrun secret list

Lists the Secrets that `rlrun secret set` created and the names of their variables, without values."""
SET_SECRET_EPILOG = """Examples:

  rlrun secret set judge JUDGE_KEY
  pass show judge | rlrun secret set judge JUDGE_KEY
  rlrun secret set judge --env-file secrets.env --from-file CERTIFICATE=ca.pem

Prompts for each NAME without echo. Without a terminal, reads the value of a single NAME from standard input and \
strips one trailing newline. Other variables of the Secret are unchanged. `rlrun run --help` describes the syntax of \
env files. In a run's TOML: [[env_from]], then secret_ref = { name = "judge" }. Requires the rights to get, create and \
patch Secrets in the namespace."""
DELETE_SECRET_EPILOG = """Examples:

  rlrun secret delete judge
  rlrun secret delete judge JUDGE_KEY --yes"""
OWN = {MANAGED_BY_LABEL: CLI_FIELD_MANAGER}

SecretName = Annotated[str, typer.Argument(metavar="SECRET", help="Name of the Secret.")]


def is_own(item: Obj) -> bool:
    """Return True for Secrets that `secret set` created, and False for the Secret of a single run."""
    labels = item["metadata"].get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == CLI_FIELD_MANAGER and RUN_LABEL not in labels


@with_cluster
def list_secrets(
    api: RemoteCluster,
    fmt: Output = None,
) -> None:
    """List the Secrets for run environments, without their values."""
    secrets = sorted((item for item in api.list(SECRET, OWN) if is_own(item)), key=lambda i: str(i["metadata"]["name"]))
    if fmt:
        shown = [{"name": i["metadata"]["name"], "variables": sorted(i.get("data") or {})} for i in secrets]
        output.emit_values(shown, "name", fmt)
    elif secrets:
        rows = [[i["metadata"]["name"], ", ".join(sorted(i.get("data") or {})), output.age(i)] for i in secrets]
        output.print_table(["NAME", "VARIABLES", "AGE"], rows)
    else:
        output.notice(f"No Secrets for runs in namespace {api.namespace}. Create one: rlrun secret set --help")


@with_cluster
def set_secret(
    api: RemoteCluster,
    secret: SecretName,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Variables to set.")] = None,
    env_file: Annotated[
        list[Path] | None, typer.Option("--env-file", metavar="FILE", help="File with VAR=VALUE lines. Repeatable.")
    ] = None,
    from_file: Annotated[
        list[str] | None,
        typer.Option(
            "--from-file", metavar="NAME=FILE", help="Variable whose value is the content of a file. Repeatable."
        ),
    ] = None,
) -> None:
    """Set variables in a Secret, creating it if it does not exist. Values are never shown."""
    _check_names(names or [])
    values = read_files(env_file or [], os.environ) | dict(_content(option) for option in from_file or [])
    values |= _ask_for_values(names or [])
    if not values:
        raise CliError("no variables are given", "name at least one: rlrun secret set SECRET NAME", code=INVALID)
    if sum(len(name) + len(value.encode()) for name, value in values.items()) > MAX_SECRET_BYTES:
        raise CliError("the values exceed 1 MiB in total, the size limit of a Secret", "shorten some", code=INVALID)
    data = {name: base64.b64encode(value.encode()).decode() for name, value in sorted(values.items())}
    try:
        _own(api, secret)
        api.patch(SECRET, secret, {"data": data})
        done = "changed"
    except NotFoundError:
        metadata = {"name": secret, "namespace": api.namespace, "labels": OWN}
        api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data})
        done = "created"
    typer.echo(f"secrets/{secret} {done}: {', '.join(data)}")
    output.notice("New runs get these values. Runs that have already started need a restart: rlrun restart RUN")


@with_cluster
def delete_secret(
    api: RemoteCluster,
    secret: SecretName,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Variables to delete. Default: the whole Secret.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete a Secret or some of its variables."""
    item = _own(api, secret)
    data = item.get("data") or {}
    if missing := [name for name in names or [] if name not in data]:
        raise CliError(f"{secret} has no variable {', '.join(missing)}", f"it has: {', '.join(sorted(data)) or 'none'}")
    users = [run["metadata"]["name"] for run in api.list(RLRUN) if _uses(run, secret)]
    used = f" Unfinished runs use it: {', '.join(users)}." if users else ""
    what = f"{', '.join(names)} of {secret}" if names else secret
    confirm(f"Delete {what} in namespace {api.namespace}?{used}", f"{what} was not deleted", yes=yes)
    if names:
        api.patch(SECRET, secret, {"data": dict.fromkeys(names)})
    else:
        api.delete(SECRET, secret, item["metadata"]["uid"])
    typer.echo(f"secrets/{secret} {'changed' if names else 'deleted'}")


def _own(api: RemoteCluster, name: str) -> Obj:
    """Return a Secret. Raises NotFoundError if it does not exist, CliError if `rlrun secret` did not create it."""
    try:
        item = api.get(SECRET, name)
    except NotFoundError:
        raise NotFoundError(f"no Secret is named {name}", "list the Secrets: rlrun secret list") from None
    if not is_own(item):
        raise CliError(f"Secret {name} was not created by `rlrun secret`", "choose another name, or use kubectl")
    return item


def _uses(run: Obj, secret: str) -> bool:
    references = [(entry.get("secretRef") or {}).get("name") for entry in run["spec"].get("envFrom") or []]
    return secret in references and not summarize(run).finished


def _check_names(names: list[str]) -> None:
    for name in names:
        if "=" in name:
            # Omit the rest of the argument, which contains the value.
            raise CliError(
                f"{name.partition('=')[0]}: values must not be given as arguments, because the shell keeps them in "
                "its history",
                "pass only the name; the value is prompted for or read from standard input",
                code=INVALID,
            )
        if not NAME.fullmatch(name):
            raise CliError(f"{name!r} is not a valid variable name", "use letters, digits and _", code=INVALID)


def _content(option: str) -> tuple[str, str]:
    name, given, file = option.partition("=")
    if not given or not NAME.fullmatch(name):
        raise CliError(f"--from-file: {option!r} is not NAME=FILE", "write --from-file KEY=key.txt", code=INVALID)
    try:
        return name, Path(file).read_bytes().decode()
    except OSError as problem:
        raise CliError(f"--from-file: {file} cannot be read: {problem.strerror}", code=INVALID) from problem
    except UnicodeDecodeError as problem:
        raise CliError(
            f"--from-file: {file} is not UTF-8 text", "encode it, for example as base64", code=INVALID
        ) from problem


def _ask_for_values(names: list[str]) -> dict[str, str]:
    if sys.stdin.isatty():
        return {name: typer.prompt(f"Value of {name}", hide_input=True, err=True) for name in names}
    if len(names) > 1:
        raise CliError(
            "standard input can provide the value of only one variable",
            "run the command once per variable, or use --env-file",
            code=INVALID,
        )
    if not names:
        return {}
    try:
        value = re.sub(r"\r?\n\Z", "", sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as problem:
        raise CliError(
            "standard input is not UTF-8 text", "encode it, for example as base64", code=INVALID
        ) from problem
    if not value:
        raise CliError(f"standard input has no value for {names[0]}", "pipe the value to standard input", code=INVALID)
    return {names[0]: value}
