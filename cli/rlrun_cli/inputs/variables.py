"""Environment variables of a run's environments: read from `-e` and env files, stored in one Secret.

Values are secrets: no message, log or exception of this module contains one. An env file has lines `NAME=value`, with
`#` comments, an optional leading `export`, and optional quotes around a value.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.constants import CLI_FIELD_MANAGER, MANAGED_BY_LABEL, RUN_LABEL

from rlrun_cli.terminal.errors import INVALID, CliError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_SECRET_BYTES = 1024 * 1024
"""Size limit of a Kubernetes Secret in bytes."""


def parse_option(option: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Parse `NAME=value`, or `NAME` with the value from `environ`.

    Raises ValueError, which never contains the value, for an invalid name or a variable that is not set.
    """
    name, given, value = option.partition("=")
    if not NAME.fullmatch(name):
        shown = name if given else "the text given"
        raise ValueError(
            f"-e: {shown!r} is not a valid variable name: use letters, digits and _, as in -e WANDB_API_KEY"
        )
    if given:
        return name, value
    if name not in environ:
        raise ValueError(f"-e {name}: the variable is not set in your environment: export it, or write -e {name}=...")
    return name, environ[name]


def parse_file(text: str, source: str) -> tuple[dict[str, str], list[str]]:
    """Parse an env file. Returns its variables, and one problem per invalid line (`source:line: what to do`)."""
    variables: dict[str, str] = {}
    problems = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, given, value = line.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not given or not NAME.fullmatch(name):
            problems.append(f"{source}:{number}: write NAME=value, one variable per line")
            continue
        if value[:1] in ("'", '"'):
            end = value.find(value[0], 1)
            if end < 0:
                problems.append(f"{source}:{number}: {name}: the closing quote is missing")
                continue
            value = value[1:end]
        else:
            value = re.split(r"\s+#", value, maxsplit=1)[0]
        variables[name] = value
    return variables, problems


def read_files(files: Sequence[Path]) -> dict[str, str]:
    """Return the variables of env files; a later one overrides an earlier one. Raises CliError with all problems."""
    found, problems = _read_files(files)
    _refuse(problems)
    return found


def _read_files(files: Sequence[Path]) -> tuple[dict[str, str], list[str]]:
    merged: dict[str, str] = {}
    problems: list[str] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
            problems.append(f"{file}: cannot be read: {reason}")
            continue
        variables, bad = parse_file(text, str(file))
        merged |= variables
        problems += bad
    return merged, problems


def _refuse(problems: list[str]) -> None:
    if problems:
        raise CliError(
            "the environment variables are invalid", "correct them and try again", code=INVALID, details=problems
        )


def collect(files: Sequence[Path], options: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return all variables. A later file overrides an earlier one, and `-e` overrides the files.

    Raises CliError with all problems of all files and options.
    """
    found, problems = _read_files(files)
    for option in options:
        try:
            name, value = parse_option(option, environ)
        except ValueError as problem:
            problems.append(str(problem))
        else:
            found[name] = value
    if sum(len(name) + len(value.encode()) for name, value in found.items()) > MAX_SECRET_BYTES:
        problems.append("the variables exceed 1 MiB in total, the size limit of a Secret: remove or shorten some")
    _refuse(problems)
    return found


def secret_name(run: str) -> str:
    """Return the name of the Secret with a run's variables."""
    return f"{run}-env"


def secret(run: str, namespace: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Build the Secret, without an owner: it must exist before the run that references it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": secret_name(run),
            "namespace": namespace,
            "labels": {RUN_LABEL: run, MANAGED_BY_LABEL: CLI_FIELD_MANAGER},
        },
        "type": "Opaque",
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in sorted(variables.items())},
    }


def owner_patch(run: dict[str, Any]) -> dict[str, Any]:
    """Build the patch that makes the run the owner of the Secret, so that both are deleted together."""
    return {
        "metadata": {
            "ownerReferences": [
                {
                    "apiVersion": run["apiVersion"],
                    "kind": run["kind"],
                    "name": run["metadata"]["name"],
                    "uid": run["metadata"]["uid"],
                }
            ]
        }
    }
