"""Command `convert`: converts a run between TOML and an RLRun in YAML."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.loader import TomlError, dumps
from rlrun.constants import API_VERSION
from rlrun.kube.kinds import RLRUN

from rlrun_cli.commands.init import create_file
from rlrun_cli.inputs.run_files import RunFile, is_yaml, load_text, plain_path, read_text, title_of
from rlrun_cli.inputs.run_names import slug
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, default_owner
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

CONVERT_EPILOG = """Examples:

  rlrun convert rl.toml > run.yaml
  rlrun convert run.yaml -o rl.toml
  kubectl get rlrun first -o yaml | rlrun convert - > rl.toml

Both files start the same run. The API server fills in all defaults, so fields with default values are omitted when an \
object read from it is converted. Comments are not converted. TOML cannot express object metadata, and YAML cannot \
express env_file: notices on standard error list omitted fields."""


def convert(
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .toml, .yaml or .json file, or - for standard input.")
    ],
    target: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to create. Default: standard output.")
    ] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Convert a run between TOML and YAML. Rejects an invalid file with the same errors as `rlrun run`."""
    file = plain_path(file)
    text = read_text(file)
    loaded = load_text(file, text, default_owner(ctx, kubeconfig, context, namespace))
    if is_yaml(file, text):
        converted, lost = to_toml(loaded)
    else:
        converted, lost = to_yaml(loaded)
    if target is None:
        sys.stdout.write(converted)
    else:
        create_file(target, converted)
    if "#" in text:
        lost.append("Comments are not converted.")
    for line in (*(f"Note: {note}" for note in loaded.notes), *lost):
        output.notice(line)


def to_yaml(loaded: RunFile) -> tuple[str, list[str]]:
    """Return the run as YAML, and notices about omitted fields."""
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": RLRUN.kind,
        "metadata": {"name": slug(loaded.title)},
        "spec": loaded.spec,
    }
    files = " ".join(f"--env-file {file}" for file in loaded.env_files)
    lost = [f"env_file is not part of an RLRun; pass the files when you start the run: rlrun run FILE {files}"]
    return output.to_yaml(body), lost if files else []


def to_toml(loaded: RunFile) -> tuple[str, list[str]]:
    """Return the run as TOML, and notices about omitted fields. Raises CliError for fields that TOML cannot express."""
    try:
        # The API server adds all defaults to stored objects. In a file, a value that is written down is deliberate.
        is_stored = "uid" in loaded.metadata
        text = dumps(RLRunSpec.model_validate(loaded.spec), keep_set=not is_stored)
    except TomlError as error:
        raise CliError(
            f"{title_of(loaded.path)} cannot be written as TOML",
            "correct these fields and try again",
            code=INVALID,
            details=[str(problem) for problem in error.problems],
        ) from error
    lost = []
    options = [f"--name {loaded.name}" if loaded.name else "", f"-n {loaded.namespace}" if loaded.namespace else ""]
    if any(options):
        lost.append(
            f"The TOML does not contain the name or namespace; pass these when you start the run: {' '.join(options)}"
        )
    if kept := [key for key in ("labels", "annotations") if loaded.metadata.get(key)]:
        lost.append(f"Not converted: metadata.{' and metadata.'.join(kept)}.")
    return text, lost
