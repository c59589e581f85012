"""Environment variables for a run's environments, read from `-e` and env files and stored in one Secret.

Values are secrets: no message, log or exception of this module contains one. python-dotenv parses env files: lines
`NAME=value` with `#` comments, an optional leading `export`, and optional quotes around a value, which may then span
several lines. Except in single quotes, `${NAME}` is replaced by a variable from the shell, or else from earlier lines.
"""

import base64
import io
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dotenv.parser import Binding, parse_stream
from dotenv.variables import Literal, Variable, parse_variables
from rlrun.constants import CLI_FIELD_MANAGER, MANAGED_BY_LABEL, RUN_LABEL

from rlrun_cli.terminal.errors import INVALID, CliError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NESTED = re.compile(r"\$\{[^}]*?\$\{")
UNREADABLE = "write ${NAME} or ${NAME:-default}, or put a value that contains a literal ${ in single quotes"
MAX_SECRET_BYTES = 1024 * 1024
"""Size limit of a Kubernetes Secret in bytes."""


def parse_option(option: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Parse `NAME=value`, or `NAME` with the value from `environ`.

    Raises ValueError for an invalid name or a variable that is not set. The error never contains the value.
    """
    name, given, value = option.partition("=")
    if not NAME.fullmatch(name):
        shown = name if given else "the argument"
        raise ValueError(
            f"-e: {shown!r} is not a valid variable name: use letters, digits and _, as in -e WANDB_API_KEY"
        )
    if given:
        return name, value
    if name not in environ:
        raise ValueError(f"-e {name}: the variable is not set in your environment; export it, or write -e {name}=...")
    return name, environ[name]


def parse_file(text: str, source: str, known: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Parse an env file. Returns the variables, and one problem per invalid statement, as `source:line: problem`.

    `known` contains values for `${NAME}` that take precedence over the file's own variables.
    """
    variables: dict[str, str] = {}
    problems = []
    scope = ChainMap(dict(known), variables)
    for binding in parse_stream(io.StringIO(text)):
        name, value = binding.key, binding.value
        try:
            if binding.error:
                raise ValueError("cannot be read: write NAME=value and close all quotes; only a comment may follow")
            if name is None:
                continue
            if value is None or not NAME.fullmatch(name):
                raise ValueError("write NAME=value, one variable per line")
            variables[name] = value if _is_literal(binding) else _expand(value, scope)
        except ValueError as problem:
            problems.append(f"{source}:{_line(binding)}: {problem}")
    return variables, problems


def _line(binding: Binding) -> int:
    """Return the line number of a statement, without the blank lines that the parser counts as part of it."""
    text = binding.original.string
    return binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")


def _is_literal(binding: Binding) -> bool:
    """Return True if the value is in single quotes and must not be changed. python-dotenv would expand it."""
    return binding.original.string.partition("=")[2].lstrip().startswith("'")


def _expand(value: str, known: Mapping[str, str]) -> str:
    """Return the value with `${NAME}` and `${NAME:-default}` expanded. Raises ValueError, which never contains the
    value.
    """
    # The library's regular expression scans the rest of the value again for each unclosed ${.
    if NESTED.search(value):
        raise ValueError(UNREADABLE)
    texts = []
    for atom in parse_variables(value):
        if isinstance(atom, Variable) and NAME.fullmatch(atom.name) and "${" not in (atom.default or ""):
            if atom.name not in known and atom.default is None:
                raise ValueError(f"${{{atom.name}}} is not set; export it, set it above, or use single quotes")
            texts.append(atom.resolve(known))
        elif isinstance(atom, Literal) and "${" not in atom.value:
            texts.append(atom.value)
        else:
            raise ValueError(UNREADABLE)
    return "".join(texts)


def read_files(files: Sequence[Path], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in env files. Later files override earlier ones. Raises CliError with all problems."""
    found, problems = _read_files(files, environ)
    _refuse(problems)
    return found


def _read_files(files: Sequence[Path], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    merged: dict[str, str] = {}
    problems: list[str] = []
    for file in files:
        try:
            text = file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
            problems.append(f"{file}: cannot be read: {reason}")
            continue
        variables, bad = parse_file(text, str(file), {**merged, **environ})
        merged |= variables
        problems += bad
    return merged, problems


def _refuse(problems: list[str]) -> None:
    if problems:
        raise CliError(
            "the environment variables are invalid", "fix them and try again", code=INVALID, details=problems
        )


def collect(files: Sequence[Path], options: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return all variables. Later files override earlier ones, and `-e` overrides all files.

    Raises CliError with all problems of all files and options.
    """
    found, problems = _read_files(files, environ)
    for option in options:
        try:
            name, value = parse_option(option, environ)
        except ValueError as problem:
            problems.append(str(problem))
        else:
            found[name] = value
    if sum(len(name) + len(value.encode()) for name, value in found.items()) > MAX_SECRET_BYTES:
        problems.append("the variables exceed 1 MiB in total, the size limit of a Secret; remove or shorten some")
    _refuse(problems)
    return found


def secret_name(run: str) -> str:
    """Return the name of the Secret with a run's variables."""
    return f"{run}-env"


def secret(run: str, namespace: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Build the Secret, without an owner, because it must exist before the run that references it."""
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
    """Build the patch that makes the run the owner of the Secret, so that deleting the run deletes the Secret."""
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
