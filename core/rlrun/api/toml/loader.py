"""Converts between TOML files and RLRunSpec. Both have the same fields, in snake_case in TOML.

`loads` reports all problems of a file at once, each under its TOML path. It also accepts `env_files`, and the keys of
related dialects (see `dialects`).
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlrun.api.base.field_errors import UNKNOWN, FieldProblem, fields_at, problems, unknown_field
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.dialect_keys import NO_OWNER
from rlrun.api.toml.dialects import NAME_WITHOUT_OWNER, Translation, translate
from rlrun.api.toml.writer import write_toml

ENV_FILE_KEYS = ("env_file", "env_files")
_WITHOUT_OWNER = re.compile(rf"'{NAME_WITHOUT_OWNER}' has the wrong format")
MAX_DEPTH = 64
"""Maximum depth of tables and lists in a file. No valid run is nested more deeply."""
FREE_FORM = ("args", "taskset", "harness")


@dataclass(frozen=True)
class RunToml:
    """Content of a TOML file."""

    spec: RLRunSpec
    env_files: list[str] = field(default_factory=list)
    """Paths of files with NAME=value lines for the secrets of the environments, relative to the TOML file."""
    notes: list[FieldProblem] = field(default_factory=list)
    """Notes about keys that have no effect and about adapted values, with the reason."""
    origin: Callable[[str], str] = field(default=str, compare=False)
    """Function that converts a path in the run to the path in the file."""


class TomlError(ValueError):
    """Raised for a file that is not a valid run. `problems` lists what is wrong."""

    def __init__(self, field_problems: Sequence[FieldProblem]):
        super().__init__("\n".join(map(str, field_problems)))
        self.problems = list(field_problems)


def load(path: Path, owner: str | None = None) -> RunToml:
    """Read a TOML file. Raises OSError if it cannot be read, TomlError if it is not a valid run."""
    try:
        return loads(path.read_text(encoding="utf-8-sig"), owner)
    except UnicodeDecodeError as error:
        raise TomlError(
            [FieldProblem(str(path), f"is not UTF-8 text: {error.reason} at byte {error.start}")]
        ) from error


def loads(text: str, owner: str | None = None) -> RunToml:
    """Return the run that a TOML text describes.

    `owner` completes ids of environments without an owner. If `owner` is None, such ids are refused. Raises TomlError,
    which lists each problem under its TOML path.
    """
    return from_table(_read(text), owner)


def from_table(table: dict[str, Any], owner: str | None = None) -> RunToml:
    """Return the run in a parsed TOML table, as `loads` does. Removes `env_file` and `env_files` from the table."""
    field_problems: list[FieldProblem] = []
    env_files = _env_files(table, field_problems)
    translation = translate(table, owner)
    field_problems += translation.problems
    field_problems += _not_json(translation.table)
    try:
        spec = RLRunSpec.model_validate(translation.table, by_name=True, by_alias=False)
    except ValidationError as error:
        field_problems += [_with_keys_of_file(p, translation) for p in problems(error, RLRunSpec, by_name=True)]
    else:
        if not field_problems:
            return RunToml(spec, env_files, translation.notes, translation.origin)
    raise TomlError(field_problems)


def _read(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises TomlError."""
    too_deep = TomlError([FieldProblem("TOML", f"has tables or lists more than {MAX_DEPTH} levels deep")])
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise too_deep from error
    except ValueError as error:
        # Raised by tomllib, or by int for a number with thousands of digits.
        raise TomlError([FieldProblem("TOML", f"cannot be read: {error}")]) from error
    level: list[Any] = [table]
    for _ in range(MAX_DEPTH):
        level = [below for value in level if isinstance(value, dict | list) for below in _values(value)]
    if level:
        raise too_deep
    return table


def _values(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def dumps(spec: RLRunSpec, env_files: Sequence[str] = (), *, keep_set: bool = False) -> str:
    """Return a TOML text from which `loads` returns the same run. Omits default values, except, with `keep_set`,
    default values that were set explicitly. Raises TomlError for a null in args, taskset or harness, which TOML does
    not support.
    """
    table = spec.model_dump(mode="json", by_alias=False, exclude_defaults=not keep_set, exclude_unset=keep_set)
    nulls = [path for path, value in _walk(table, "") if value is None and _is_free_form(path)]
    if nulls:
        raise TomlError([FieldProblem(path, "is null, which TOML does not support: remove it") for path in nulls])
    if env_files:
        table = {"env_file": list(env_files), **table}
    return write_toml(table)


def _env_files(table: dict[str, Any], field_problems: list[FieldProblem]) -> list[str]:
    files: list[str] = []
    for key in ENV_FILE_KEYS:
        value = table.pop(key, [])
        if isinstance(value, list) and all(isinstance(file, str) and file for file in value):
            files += value
        else:
            field_problems.append(FieldProblem(key, 'must be a list of file names, as in ["secrets.env"]'))
    return files


def _with_keys_of_file(problem: FieldProblem, translation: Translation) -> FieldProblem:
    """Rename translated keys in a problem to the keys in the file."""
    path, message = translation.origin(problem.path), problem.message
    if re.fullmatch(r"(eval\.)?env\[\d+\]\.id", problem.path) and _WITHOUT_OWNER.match(message):
        return FieldProblem(path, NO_OWNER)
    if message.startswith("unknown field"):
        if path in translation.table and message != UNKNOWN:
            message = unknown_field(path, [*fields_at(RLRunSpec, (), by_name=True), *ENV_FILE_KEYS])
        return FieldProblem(path, message)
    for here, there in translation.renames().items():
        message = re.sub(rf"\b{re.escape(here)}\b", there, message)
    return FieldProblem(path, message)


def _not_json(table: dict[str, Any]) -> list[FieldProblem]:
    """Return a problem for each value in the free-form tables that cannot be sent as JSON."""
    field_problems = []
    for path, value in _walk(table, ""):
        if not _is_free_form(path):
            continue
        if isinstance(value, float) and not math.isfinite(value):
            field_problems.append(FieldProblem(path, f"{value} cannot be sent as JSON: use a finite number"))
        elif value is not None and not isinstance(value, str | int | float | bool | list | dict):
            field_problems.append(
                FieldProblem(path, f"a {type(value).__name__} cannot be sent as JSON: write it as a string")
            )
    return field_problems


def _is_free_form(path: str) -> bool:
    return any(f".{name}" in path for name in FREE_FORM)


def _walk(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return every value below `value` with its path."""
    leaves: list[tuple[str, Any]] = []
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else str(key), below) for key, below in value.items()]
    elif isinstance(value, list):
        items = [(f"{path}[{index}]", below) for index, below in enumerate(value)]
    for child_path, child in items:
        leaves.append((child_path, child))
        leaves += _walk(child, child_path)
    return leaves
