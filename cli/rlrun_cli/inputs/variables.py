"""Environment variables for a run's environments: from `-e`, from env files, into one Secret.

Values are secrets from the first moment: no message, log or exception of this module carries one. An env file is lines
of `NAME=value`, with `#` comments, an optional leading `export`, and quotes around a value if wanted.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.constants import CLI_FIELD_MANAGER, MANAGED_BY_LABEL, RUN_LABEL

from rlrun_cli.terminal.errors import INVALID, CliError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LIMIT = 1024 * 1024
"""Bytes that a Kubernetes Secret may hold."""


def parse_option(option: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """`NAME=value`, or `NAME` with the value taken from `environ`.

    Raises ValueError (without the value in it) for a bad name or a variable that is not set.
    """
    name, given, value = option.partition("=")
    if not NAME.fullmatch(name):
        shown = name if given else "the text given"
        raise ValueError(f"-e: {shown!r} is no variable name: use letters, digits and _, as in -e WANDB_API_KEY")
    if given:
        return name, value
    if name not in environ:
        raise ValueError(f"-e {name}: not set in your environment: export it, or write -e {name}=...")
    return name, environ[name]


def parse_file(text: str, source: str) -> tuple[dict[str, str], list[str]]:
    """The variables of an env file and one problem per bad line (`source:line: what to do`)."""
    found: dict[str, str] = {}
    problems = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, given, value = line.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not given or not NAME.fullmatch(name):
            problems.append(f"{source}:{number}: write NAME=value, one variable a line")
            continue
        if value[:1] in ("'", '"'):
            end = value.find(value[0], 1)
            if end < 0:
                problems.append(f"{source}:{number}: {name}: the quote is not closed")
                continue
            value = value[1:end]
        else:
            value = re.split(r"\s+#", value, maxsplit=1)[0]
        found[name] = value
    return found, problems


def collect(files: Sequence[Path], options: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """All variables; a later file beats an earlier one, and `-e` beats the files.

    Raises CliError with every problem of every file and option at once.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
            problems.append(f"{file}: cannot be read: {reason}")
            continue
        variables, bad = parse_file(text, str(file))
        found |= variables
        problems += bad
    for option in options:
        try:
            name, value = parse_option(option, environ)
        except ValueError as problem:
            problems.append(str(problem))
        else:
            found[name] = value
    if sum(len(name) + len(value.encode()) for name, value in found.items()) > LIMIT:
        problems.append("the variables are larger than 1 MiB together, more than a Secret can hold")
    if problems:
        raise CliError("the environment variables are not usable", code=INVALID, details=problems)
    return found


def secret_name(run: str) -> str:
    """Name of the Secret that holds a run's variables."""
    return f"{run}-env"


def secret(run: str, namespace: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """The Secret, still without an owner: it has to exist before the run that names it."""
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


def owned_by(run: dict[str, Any]) -> dict[str, Any]:
    """The patch that lets the Secret go when the run goes."""
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
