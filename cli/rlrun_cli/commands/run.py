"""`rlrun run`: from a file to an RLRun in the cluster.

Everything that can be known to be wrong is said before anything is sent, all of it at once. Variables travel in a
Secret that exists before the run does (a run must never see it missing) and belongs to it right after.
"""

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer
from rlrun.api.base.names import LABEL
from rlrun.constants import API_VERSION, MAX_RUN_NAME
from rlrun.kube.kinds import RLRUN, SECRET
from rlrun.kube.objects import Obj

from rlrun_cli.commands.follow import follow_to_end
from rlrun_cli.inputs import variables
from rlrun_cli.inputs.run_files import RunFile, load
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster, session
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError, ConflictError

EPILOG = """Examples:

  rlrun run rl.toml --follow

  rlrun run rl.toml -e WANDB_API_KEY -e MODE=fast --env-file secrets.env

  rlrun run rl.toml --dry-run > run.yaml && kubectl apply -f run.yaml

Variables reach the environments' pods and nothing else. Their values are never printed. Later ones win:
env_file in FILE, then --env-file, then -e.

Exit codes: 0 started (with --follow: completed); 1 refused or failed; 2 the file or an option is wrong."""
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""For random endings of names: no vowels, so no words."""
ENDING = 5


def slug(text: str) -> str:
    """The text as the beginning of an object's name."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"run-{plain}".rstrip("-")
    return plain[: MAX_RUN_NAME - ENDING - 1].rstrip("-")


def choose_name(option: str | None, file: RunFile) -> str:
    """--name; else the object's own name; else one made of the run's display name (or the file's) and a random ending.

    Raises CliError when --name cannot be a run's name.
    """
    if option:
        if len(option) > MAX_RUN_NAME or not re.fullmatch(LABEL, option):
            raise CliError(
                f"--name: {option!r} cannot be a run's name",
                f"use at most {MAX_RUN_NAME} lower-case letters, digits and '-', beginning with a letter",
                code=INVALID,
            )
        return option
    if file.name:
        return file.name
    return f"{slug(file.title)}-{''.join(secrets.choice(LETTERS) for _ in range(ENDING))}"


def choose_namespace(option: str | None, file: RunFile) -> str | None:
    """-n, else the object's own; None leaves it to the context. Raises CliError when -n and the object disagree."""
    if option and file.namespace and option != file.namespace:
        raise CliError(
            f"{file.path} is for namespace {file.namespace}, and -n says {option}",
            "leave one of them out",
            code=INVALID,
        )
    return option or file.namespace


def build(file: RunFile, name: str, namespace: str | None, *, with_secret: bool) -> Obj:
    """The RLRun to send; with a Secret, its reference goes to the end of envFrom, where it beats the others."""
    place = {"name": name} | ({"namespace": namespace} if namespace else {})
    others = {k: v for k, v in file.metadata.items() if k not in ("name", "namespace", "generateName")}
    spec = dict(file.spec)
    if with_secret:
        reference = {"secretRef": {"name": variables.secret_name(name)}}
        spec["envFrom"] = [*(e for e in spec.get("envFrom") or [] if e != reference), reference]
    return {"apiVersion": API_VERSION, "kind": RLRUN.kind, "metadata": {**place, **others}, "spec": spec}


def submit(api: RemoteCluster, body: Obj, values: dict[str, str]) -> Obj:
    """Create the run, and before it the Secret that it names.

    Raises CliError; then no Secret of this call is left behind.
    """
    name = body["metadata"]["name"]
    if not values:
        return api.create(body)
    try:
        api.create(variables.secret(name, api.namespace, values))
    except ConflictError as problem:
        raise ConflictError(
            f"the variables of {name} cannot be stored: Secret {variables.secret_name(name)} exists already",
            "choose another --name, or delete that Secret if no run uses it",
        ) from problem
    try:
        created = api.create(body)
    except BaseException:
        api.delete(SECRET, variables.secret_name(name), missing_ok=True)
        raise
    try:
        api.patch(SECRET, variables.secret_name(name), variables.owned_by(created))
    except CliError as problem:
        output.say(f"Warning: Secret {variables.secret_name(name)} will outlive the run: {problem.message}")
    return created


def run(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .toml config, or an RLRun as .yaml or .json.")],
    env: Annotated[
        list[str] | None, typer.Option("-e", "--env", metavar="VAR[=VALUE]", help="A variable; repeatable.")
    ] = None,
    env_file: Annotated[
        list[Path] | None, typer.Option("--env-file", metavar="FILE", help="A file of VAR=VALUE lines; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the RLRun; else made from the file.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay and watch until it ends.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, print the RLRun as YAML, send nothing.")] = False,
    fmt: Annotated[
        output.Format | None, typer.Option("-o", "--output", help="Print the created run: json, yaml or name.")
    ] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Start a run. All problems of FILE are listed at once, with their places."""
    loaded = load(file)
    values = variables.collect([*loaded.env_files, *(env_file or [])], env or [], os.environ)
    chosen = choose_name(name, loaded)
    place = choose_namespace(namespace or session(ctx).namespace, loaded)
    if dry_run:
        sys.stdout.write(output.to_yaml(build(loaded, chosen, place, with_secret=bool(values))))
        if values:
            names = ", ".join(sorted(values))
            output.say(f"Secret {variables.secret_name(chosen)} would hold {names} (values not shown).")
        return
    api = cluster(ctx, kubeconfig, context, place)
    created = submit(api, build(loaded, chosen, api.namespace, with_secret=bool(values)), values)
    if fmt:
        output.emit([created], RLRUN.plural, fmt, single=True)
    else:
        typer.echo(f"rlruns.rlrun.dev/{chosen} created")
    if follow:
        follow_to_end(ctx, api, chosen)
    elif not fmt:
        output.say(f"Watch it: rlrun follow {chosen} -n {api.namespace}")
