"""Command `run`: creates an RLRun from a file.

The whole file is validated before anything is sent. Variables are stored in a Secret, which is created before the run,
so that it exists when the run starts. Then the run becomes the owner of the Secret.
"""

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rlrun.api.base.names import LABEL, MAX_NAMESPACE, NAMESPACE
from rlrun.constants import API_VERSION, MAX_RUN_NAME, USER_ANNOTATION
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN, SECRET
from rlrun.kube.objects import Obj

from rlrun_cli.commands.follow import follow_to_end
from rlrun_cli.inputs import variables
from rlrun_cli.inputs.run_files import RunFile, load, title_of
from rlrun_cli.inputs.run_names import with_suffix
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cli_context, cluster, default_owner
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError, ConflictError, UnreachableError

WANDB_KEY = "WANDB_API_KEY"
RUN_EPILOG = """Examples:

  rlrun run rl.toml --follow
  rlrun run rl.toml -e WANDB_API_KEY -e MODE=fast --env-file secrets.env
  rlrun init - --demo | rlrun run -
  rlrun run rl.toml --dry-run > run.yaml && kubectl apply -f run.yaml

Variables are set only in the environment pods, and their values are never printed. -e overrides --env-file, which \
overrides env_file in FILE. Env files contain NAME=value lines. Quoted values may span several lines; ${NAME} and \
${NAME:-default} are expanded, except in single quotes, from your shell or else from earlier lines.

Exit codes: 0 started (with --follow: completed); 1 rejected or failed; 2 invalid file or option."""


VALIDATE_EPILOG = """Examples:

  rlrun validate rl.toml
  rlrun validate run.yaml

References to the cluster (model, packages, Secrets) are checked when the run is created. `rlrun run --dry-run` also \
checks the variables and prints the RLRun.

Exit codes: 0 valid; 2 invalid."""


def choose_name(option: str | None, file: RunFile) -> str:
    """Return --name, else the name in the file, else its title (`RunFile.title`) with a random suffix.

    Raises CliError if --name is not a valid name for a run.
    """
    if option:
        if len(option) > MAX_RUN_NAME or not re.fullmatch(LABEL, option):
            raise CliError(
                f"--name: {option!r} is not a valid run name",
                f"use at most {MAX_RUN_NAME} lower-case letters, digits and '-'; begin with a letter, end without '-'",
                code=INVALID,
            )
        return option
    if file.name:
        return file.name
    return with_suffix(file.title)


def choose_namespace(option: str | None, file: RunFile) -> str | None:
    """Return -n, else the namespace in the file, or None to use the context's namespace.

    Raises CliError if both are given and differ, or if the name is not valid.
    """
    if option and file.namespace and option != file.namespace:
        raise CliError(
            f"{title_of(file.path)} has metadata.namespace {file.namespace}, but -n is {option}",
            "remove one of the two",
            code=INVALID,
        )
    chosen = option or file.namespace
    if chosen and not (isinstance(chosen, str) and len(chosen) <= MAX_NAMESPACE and re.fullmatch(NAMESPACE, chosen)):
        raise CliError(
            f"{'--namespace' if option else 'metadata.namespace'}: {chosen!r} is not a valid namespace name",
            f"use at most {MAX_NAMESPACE} lower-case letters, digits and '-'; begin and end with a letter or digit",
            code=INVALID,
        )
    return chosen


def add_wandb_key(values: dict[str, str], file: RunFile, key: str | None, *, is_option: bool) -> None:
    """Add the Weights & Biases key to the variables of a run that reports to Weights & Biases.

    A key passed as an option is always added. The shell's key is not added if the variables contain a key or the run
    may get one from a Secret (envFrom). Prints a warning if no key is found.
    """
    if key and is_option:
        values[WANDB_KEY] = key
        return
    wandb, sources = file.spec.get("wandb"), file.spec.get("envFrom")
    if wandb is None or wandb.get("offline") or WANDB_KEY in values or sources:
        return
    if key:
        values[WANDB_KEY] = key
        output.notice(f"Note: the run reports to Weights & Biases with your {WANDB_KEY}")
    else:
        output.notice(f"Warning: the run has [wandb] but no {WANDB_KEY}, so it will not start; add -e {WANDB_KEY}")


def build(file: RunFile, name: str, namespace: str | None, *, with_secret: bool) -> Obj:
    """Build the RLRun. With `with_secret`, the variables' Secret comes last in envFrom and overrides other Secrets."""
    identity = {"name": name} | ({"namespace": namespace} if namespace else {})
    others = {k: v for k, v in file.metadata.items() if k not in ("name", "namespace", "generateName")}
    spec = dict(file.spec)
    if with_secret:
        reference = {"secretRef": {"name": variables.secret_name(name)}}
        spec["envFrom"] = [*(e for e in spec.get("envFrom") or [] if e != reference), reference]
    return {"apiVersion": API_VERSION, "kind": RLRUN.kind, "metadata": {**identity, **others}, "spec": spec}


def with_user(body: Obj, user: str) -> Obj:
    """Annotate the run with its user for usage reports, unless the file sets this annotation or the user is empty."""
    metadata = body["metadata"]
    annotations = {**({USER_ANNOTATION: user} if user else {}), **(metadata.get("annotations") or {})}
    return {**body, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}


def submit(api: RemoteCluster, body: Obj, values: dict[str, str]) -> Obj:
    """Create the Secret if there are variables, then the run, annotated with the user unless the file sets one.

    Raises ConflictError if the Secret or the run exists already, and CliError if either cannot be created. If the run
    cannot be created, the Secret is deleted, unless the run may have been stored.
    """
    name = body["metadata"]["name"]
    body = with_user(body, api.user_name())
    if not values:
        return api.create(body)
    try:
        api.create(variables.secret(name, api.namespace, values))
    except ConflictError as problem:
        raise ConflictError(
            f"the variables of {name} cannot be stored: Secret {variables.secret_name(name)} already exists",
            "choose another --name, or delete that Secret if no run uses it",
        ) from problem
    try:
        created = api.create(body)
    except BaseException as problem:
        is_refused = isinstance(problem, CliError) and not isinstance(problem, UnreachableError)
        _settle_secret(api, name, is_refused=is_refused)
        raise
    _own_secret(api, name, created)
    return created


def _settle_secret(api: RemoteCluster, name: str, *, is_refused: bool) -> None:
    """Delete the Secret if the run was not created. Keep it if the run exists, or if this is unknown."""
    try:
        stored = None if is_refused else api.read(RLRUN, name)
        if stored is None:
            api.delete(SECRET, variables.secret_name(name), missing_ok=True)
            return
    except (ApiError, CliError):
        output.notice(
            f"Warning: Secret {variables.secret_name(name)} was kept, because it is unknown whether run {name} was "
            f"created. Delete the Secret if the run does not exist."
        )
        return
    _own_secret(api, name, stored)
    output.notice(f"Run {name} was created despite the error. Watch it: rlrun follow {name} -n {api.namespace}")


def _own_secret(api: RemoteCluster, name: str, created: Obj) -> None:
    try:
        api.patch(SECRET, variables.secret_name(name), variables.owner_patch(created))
    except CliError as problem:
        output.notice(
            f"Warning: Secret {variables.secret_name(name)} will not be deleted with the run: {problem.message}"
        )


def run(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Config as .toml, an RLRun as .yaml or .json, or - for standard input."),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option(
            "-e",
            "--env",
            metavar="VAR[=VALUE]",
            help="Variable for the environment pods; VAR alone uses the value from your shell. Repeatable. "
            "WANDB_API_KEY is used for Weights & Biases.",
        ),
    ] = None,
    env_file: Annotated[
        list[Path] | None, typer.Option("--env-file", metavar="FILE", help="File with VAR=VALUE lines. Repeatable.")
    ] = None,
    wandb_api_key: Annotated[
        str | None,
        typer.Option(
            "--wandb-api-key",
            metavar="KEY",
            envvar=WANDB_KEY,
            show_envvar=False,
            help="Weights & Biases key for a run with [wandb]. Default: WANDB_API_KEY from your shell.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the RLRun. Default: generated from the file.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Watch the run until it ends.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate the file and print the RLRun as YAML without creating it.")
    ] = False,
    fmt: Annotated[
        output.Format | None, typer.Option("-o", "--output", help="Print the created run as json, yaml or name.")
    ] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Start a run. If FILE is invalid, lists all its problems and creates nothing."""
    loaded = _load_with_notes(file, default_owner(ctx, kubeconfig, context, namespace))
    values = variables.collect([*loaded.env_files, *(env_file or [])], env or [], os.environ)
    source = ctx.get_parameter_source("wandb_api_key")
    add_wandb_key(values, loaded, wandb_api_key, is_option=source is not None and source.name == "COMMANDLINE")
    chosen = choose_name(name, loaded)
    target = choose_namespace(namespace or cli_context(ctx).namespace, loaded)
    if dry_run:
        sys.stdout.write(output.to_yaml(build(loaded, chosen, target, with_secret=bool(values))))
        if values:
            names = ", ".join(sorted(values))
            output.notice(f"Secret {variables.secret_name(chosen)} would contain {names} (values not shown).")
        return
    api = cluster(ctx, kubeconfig, context, target)
    created = submit(api, build(loaded, chosen, api.namespace, with_secret=bool(values)), values)
    if fmt:
        output.emit([created], RLRUN.plural, fmt, single=True)
    else:
        typer.echo(f"rlruns.rlrun.dev/{chosen} created")
    if follow:
        follow_to_end(ctx, api, chosen, was_found=True)
    elif not fmt:
        output.notice(f"Watch it: rlrun follow {chosen} -n {api.namespace}")


def validate(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Config as .toml, an RLRun as .yaml or .json, or - for standard input."),
    ],
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Validate a run's file without a cluster. Lists all problems, and keys that are ignored or adapted."""
    _load_with_notes(file, default_owner(ctx, kubeconfig, context, namespace))
    typer.echo(f"{title_of(file)} is valid")


def _load_with_notes(file: Path, owner: str | None) -> RunFile:
    """Read a run's file and print notices about ignored or adapted keys."""
    loaded = load(file, owner)
    for note in loaded.notes:
        output.notice(f"Note: {note}")
    return loaded
