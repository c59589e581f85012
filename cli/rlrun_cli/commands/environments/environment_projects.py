"""Commands `env init`, `env check` and `env info`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rlrun.api.base.names import package_name, similar_packages
from rlrun.storage.errors import StoreError
from rlrun.storage.layout import environment_package
from rlrun.storage.package_versions import in_order
from rlrun.storage.store import Store

from rlrun_cli.commands.environments.endpoint_options import (
    PANEL,
    Arguments,
    BaseUrl,
    Examples,
    KeyVariable,
    MaxTokens,
    Model,
    Temperature,
    Timeout,
    endpoint_key,
    for_wheel,
    read_arguments,
    read_request,
    show_remarks,
)
from rlrun_cli.commands.environments.environments import usable_packages
from rlrun_cli.commands.environments.example_player import play_example
from rlrun_cli.inputs.baseline import judge
from rlrun_cli.inputs.baseline_runner import run_baseline
from rlrun_cli.inputs.environment_checks import Remark, check_generation, check_name, check_requirements, check_wheel
from rlrun_cli.inputs.wheel_builder import OWNER, build_wheel, package_owner, project_name, read_project, read_wheel
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_storage import open_user_storage, s3_operation
from rlrun_cli.remote.server import Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import FAILED, INVALID, CliError, NotFoundError

INIT_ENVIRONMENT_EPILOG = """Examples:

  rlrun env init my-env
  rlrun env init my-env --owner team && rlrun env check my-env

Writes my-env/pyproject.toml and my-env/my_env.py: a complete single-turn environment to edit. \
docs/guides/environments.md describes environments."""
CHECK_ENVIRONMENT_EPILOG = """Examples:

  rlrun env check .
  rlrun env check . --play
  rlrun env check path/to/package --include vendored/helper-1.0-py3-none-any.whl
  rlrun env check . --base-url http://127.0.0.1:8000/v1 --model Qwen/Qwen3-0.6B
  rlrun env check . --base-url https://rlrun.example.com/v1 --model NAME --key-variable RLRUN_API_KEY

Without --play and --base-url, the command builds the wheel and inspects its files; it runs no code of the environment \
and sends nothing. Requirements are compared with the environment image; `rlrun env push` adds wheels for those that \
the image lacks.

With --play, the first example is run on this machine with your rights, by the same code as in pods; each model \
request gets the example's reference answer. A failure is reported with its phase: load, prepare, rollout or score. \
Judges and sandboxes of the environment are used as in a run. Requires the version of verifiers that runs use.

With --base-url, the environment is also run on this machine with your rights, against an OpenAI-compatible endpoint; \
use the model that the run would start from. The rewards show whether a run can learn. If no rollout gets a reward, it \
learns nothing; if the mean is above 80% of the maximum, little. Examples whose rollouts all get the same reward teach \
nothing. Requires verifiers in this Python if the environment uses it.

Exit codes: 0 all checks passed; 1 a check failed; 2 invalid folder or option."""
SHOW_ENVIRONMENT_EPILOG = """Examples:

  rlrun env info me/reverse-text
  rlrun env info me/reverse-text -o json

Shows the versions that runs can name in env.version. Private packages require `get rlenvironments` in a namespace of \
their owner."""
NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "An environment for reinforcement learning"
requires-python = ">=3.11"
dependencies = ["verifiers>=0.3,<0.4"]

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
"""
OWNER_TABLE = """
[tool.rlrun]
owner = "{owner}"
"""
MODULE = '''\
"""Environment: additions, with a reward of 1 for the right number."""

import verifiers as vf
from datasets import Dataset


def load_environment(num_examples: int = 100) -> vf.Environment:
    """Return the environment. The arguments are those of `args` in a run's file."""
    rows = []
    for n in range(num_examples):
        question = {{"role": "user", "content": f"{{n}} + {{n + 1}} = ? Answer with the number."}}
        rows.append({{"prompt": [question], "answer": str(2 * n + 1)}})
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[is_right]))


def is_right(completion, answer) -> float:
    """Return the reward of a completion."""
    return float(completion[-1]["content"].strip() == answer)
'''


def init_environment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the package: the part after the owner.")],
    owner: Annotated[str | None, typer.Option(help="Owner in owner/name, written to pyproject.toml.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Folder to create. Default: NAME.")
    ] = None,
) -> None:
    """Create a new environment package. Never overwrites a file."""
    if not NAME.fullmatch(name):
        raise CliError(
            f"{name!r} is not a valid package name",
            "use lower-case letters, digits and '-'; begin with a letter, end without '-'",
            code=INVALID,
        )
    if owner is not None and not OWNER.fullmatch(owner):
        raise CliError(f"--owner: {owner!r} is not a valid owner", "use the name of a namespace", code=INVALID)
    check_name(name)
    target, module = folder or Path(name), name.replace("-", "_")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CliError(f"{target} already exists and is not an empty folder", "select another with --dir", code=INVALID)
    project = PYPROJECT.format(name=name, module=module) + (OWNER_TABLE.format(owner=owner) if owner else "")
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "pyproject.toml").write_text(project, encoding="utf-8")
        (target / f"{module}.py").write_text(MODULE.format(), encoding="utf-8")
    except OSError as problem:
        raise CliError(
            f"{target} cannot be written: {problem.strerror}", "specify a writable folder with --dir", code=INVALID
        ) from problem
    typer.echo(str(target))
    whose = "" if owner else " --owner YOUR-NAMESPACE"
    output.notice(f"Next: edit {target}/{module}.py, then: rlrun env check {target}{whose}")


def check_environment(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the environment's Python project.")],
    owner: Annotated[
        str | None, typer.Option(help="Owner in owner/name. Default: tool.rlrun.owner in pyproject.toml.")
    ] = None,
    include: Annotated[
        list[Path] | None, typer.Option(help="Wheel of a dependency to push with the package. Repeatable.")
    ] = None,
    play: Annotated[bool, typer.Option("--play", help="Run the first example with a scripted model.")] = False,
    base_url: BaseUrl = None,
    model: Model = None,
    key_variable: KeyVariable = None,
    args: Arguments = "{}",
    examples: Examples = 10,
    rollouts: Annotated[int, typer.Option(min=2, max=256, help="Rollouts per example.", rich_help_panel=PANEL)] = 8,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 1.0,
    timeout: Timeout = 600,
) -> None:
    """Check an environment package before you push it."""
    request = read_request(base_url, model, args)
    project = read_project(folder)
    # Check before the build, which imports modules of the project in place of installed ones of the same name.
    check_name(project_name(project))
    remarks = []
    try:
        remarks.append(Remark(f"the owner of the package is {package_owner(project, owner)}"))
    except CliError as problem:
        remarks.append(Remark(problem.message, problem.hint or ""))
    wheel = build_wheel(folder)
    remarks += [Remark(f"the wheel of version {wheel.version} was built"), *check_wheel(wheel)]
    wheels = [*(read_wheel(path) for path in include or []), wheel]
    remarks += check_generation(wheels)
    remarks += check_requirements(wheels, is_bundled=True)
    is_sound = show_remarks(remarks)
    if play and is_sound:
        is_sound = show_remarks([play_example(wheels, read_arguments(args), timeout)])
    if request is not None:
        asked = replace(
            for_wheel(request, wheel),
            sampling={"max_tokens": max_tokens, "temperature": temperature},
            examples=examples,
            rollouts=rollouts,
            seconds=float(timeout),
        )
        key = endpoint_key(request.base_url, key_variable)
        output.notice(f"Running {rollouts} rollouts for each of up to {examples} examples with {model} at {base_url}")
        is_sound = show_remarks(judge(run_baseline(wheels, asked, key, timeout))) and is_sound
    if not is_sound:
        raise typer.Exit(FAILED)


@with_cluster
def show_environment(
    ctx: typer.Context,
    api: RemoteCluster,
    package: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Id of the package, as in env.id of a run.")],
    fmt: Annotated[
        output.Format | None,
        typer.Option("-o", "--output", help="Print machine-readable output: json, yaml or name (versions)."),
    ] = None,
    server: Server = None,
) -> None:
    """Show the versions of an environment package and their files."""
    owner, slash, name = package.partition("/")
    if not slash or not OWNER.fullmatch(owner) or not OWNER.fullmatch(package_name(name)):
        raise CliError(f"{package!r} is not a package id", "write OWNER/NAME", code=INVALID)
    with s3_operation(f"read the versions of {package}"):
        storage = open_user_storage(ctx, api, server)
        versions = read_versions(storage.store, storage.bucket, storage.prefix, owner, name)
    if not versions:
        similar = ", ".join(_similar_packages(ctx, api, server, package, owner))
        hint = f"similar packages: {similar}" if similar else f"push it: rlrun env push DIR --owner {owner}"
        raise NotFoundError(f"no version of {package} has been pushed", hint)
    if fmt:
        output.emit_values([{"version": v, "files": dict(files)} for v, files in versions.items()], "version", fmt)
        return
    rows = [[v, output.size(sum(s for _, s in files)), ", ".join(f for f, _ in files)] for v, files in versions.items()]
    output.print_table(["VERSION", "SIZE", "FILES"], rows)


def _similar_packages(
    ctx: typer.Context, api: RemoteCluster, server: str | None, package: str, owner: str
) -> list[str]:
    """Return package ids similar to `package`, which is missing. The list is empty if packages cannot be listed."""
    try:
        known, _ = usable_packages(ctx, api, server, owner)
    except (CliError, StoreError):
        return []
    return similar_packages(package, (each.id for each in known))


def read_versions(store: Store, bucket: str, prefix: str, owner: str, name: str) -> dict[str, list[tuple[str, int]]]:
    """Return the files and sizes of each version, in version order. Raises StoreError."""
    versions: dict[str, list[tuple[str, int]]] = {}
    for path, size in store.list_files(environment_package(bucket, prefix, owner, name)):
        version, _, file = path.partition("/")
        if file.endswith(".whl"):
            versions.setdefault(version, []).append((file, size))
    return {version: versions[version] for version in in_order(versions)}
