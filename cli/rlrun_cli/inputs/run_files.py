"""Reads run files (TOML, YAML, JSON) and validates them before anything is sent."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rlrun.api.base.field_errors import FieldProblem, problems
from rlrun.api.base.kubernetes_types import KubernetesObject
from rlrun.api.run import RLRun
from rlrun.api.toml.dialects import group_by_reason
from rlrun.api.toml.loader import TomlError, loads

from rlrun_cli.inputs.positions import line_of, toml_lines, yaml_lines
from rlrun_cli.terminal.errors import INVALID, CliError

STDIN = Path("-")


@dataclass(frozen=True)
class RunFile:
    """Validated content of a run file."""

    path: Path
    spec: dict[str, Any]
    """Spec of the RLRun with camelCase names. The API server adds defaults."""
    metadata: dict[str, Any] = field(default_factory=dict)
    env_files: list[Path] = field(default_factory=list)
    """Paths in `env_file` of the TOML, resolved against the file's folder."""
    notes: list[str] = field(default_factory=list)
    """Notices about ignored keys and adapted values in the TOML."""

    @property
    def name(self) -> str | None:
        """Name of the object, or None if the file has none."""
        return self.metadata.get("name")

    @property
    def namespace(self) -> str | None:
        """Namespace of the object, or None if the file has none."""
        return self.metadata.get("namespace")

    @property
    def title(self) -> str:
        """Text from which a run's name is generated: generateName, else the display name, else the file's name."""
        stem = "run" if self.path == STDIN else self.path.stem
        return str(self.metadata.get("generateName") or self.spec.get("name") or stem)


READ_HINT = "use .toml, .yaml or .json, or - for standard input"
YAML_START = re.compile(r"\s*\{|.*^(apiVersion|kind)\s*:", re.MULTILINE | re.DOTALL)


def load(path: Path, owner: str | None = None) -> RunFile:
    """Read a file in the format that its suffix indicates. `-` reads standard input in any format.

    `owner` is the default owner of environments in a TOML file. Raises CliError with all problems of the file.
    """
    path = plain_path(path)
    return load_text(path, read_text(path), owner)


def plain_path(path: Path) -> Path:
    """Return the path without a leading `@`, which the CLIs of some hosted services use.

    A path that exists is returned unchanged.
    """
    return Path(str(path)[1:]) if str(path).startswith("@") and len(str(path)) > 1 and not path.exists() else path


def load_text(path: Path, text: str, owner: str | None = None) -> RunFile:
    """Parse and validate the text of a run file. Raises CliError with all problems of the text."""
    return _load_yaml(path, text) if is_yaml(path, text) else _load_toml(path, text, owner)


def read_text(path: Path) -> str:
    """Read a file or standard input as UTF-8. Raises CliError."""
    path = plain_path(path)
    if path != STDIN and path.suffix.lower() not in (".toml", ".yaml", ".yml", ".json"):
        raise CliError(f"the format of {path} is not supported", READ_HINT, code=INVALID)
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as problem:
        hint = "create one: rlrun init" if isinstance(problem, FileNotFoundError) else None
        raise CliError(f"{path} cannot be read: {problem.strerror}", hint, code=INVALID) from problem
    except UnicodeDecodeError as problem:
        raise CliError(f"{title_of(path)} is not UTF-8 text", "save it as UTF-8", code=INVALID) from problem


def is_yaml(path: Path, text: str) -> bool:
    """Return True for YAML and JSON, False for TOML. The format of standard input is detected from its content."""
    return bool(YAML_START.match(text)) if path == STDIN else path.suffix.lower() != ".toml"


def title_of(path: Path) -> str:
    """Return the display name of a file for messages."""
    return "standard input" if path == STDIN else str(path)


def _invalid_file(path: Path, errors: Sequence[FieldProblem], lines: Mapping[str, int]) -> CliError:
    count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
    placed = sorted(((line_of(problem.path, lines) or 0, problem) for problem in errors), key=lambda pair: pair[0])
    shown = [f"line {line}: {problem}" if line else str(problem) for line, problem in placed]
    return CliError(f"{title_of(path)} has {count}", "fix them and try again", code=INVALID, details=shown)


def _load_yaml(path: Path, text: str) -> RunFile:
    document = load_object(path, text, RLRun)
    return RunFile(path, document["spec"], document.get("metadata") or {})


def load_object(path: Path, text: str, kind: type[KubernetesObject]) -> dict[str, Any]:
    """Return the single object in a YAML or JSON text. Raises CliError with all problems of the text."""
    name, wanted = title_of(path), kind.model_fields["kind"].default
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
        lines, repeated = yaml_lines(text)
    except yaml.YAMLError as problem:
        raise CliError(f"{name} is not valid YAML: {_place(problem)}", "fix the syntax", code=INVALID) from problem
    if len(documents) > 1:
        raise CliError(
            f"{name} contains {len(documents)} documents instead of one {wanted}",
            "use kubectl apply for multiple objects",
            code=INVALID,
        )
    if not documents or not isinstance(documents[0], dict):
        contents = "empty" if not documents else "a list" if isinstance(documents[0], list) else "plain text"
        raise CliError(
            f"{name} is {contents}, not an {wanted}", "write an object with apiVersion, kind and spec", code=INVALID
        )
    document: dict[str, Any] = documents[0]
    if document.get("kind") != wanted:
        if document.get("kind") is None:
            raise CliError(f"{name} has no kind; expected {wanted}", f"write kind: {wanted}", code=INVALID)
        raise CliError(
            f"{name} has kind {document['kind']}, not {wanted}", "use kubectl apply for other kinds", code=INVALID
        )
    wrong = [FieldProblem(key, f"is set twice, the second time on line {line}") for key, line in repeated]
    try:
        kind.from_object(document)
    except ValidationError as error:
        wrong += problems(error, kind)
    if wrong:
        raise _invalid_file(path, wrong, lines)
    return document


def _place(problem: yaml.YAMLError) -> str:
    """Return the line and the problem of a YAML syntax error, on one line."""
    mark, text = getattr(problem, "problem_mark", None), getattr(problem, "problem", None)
    return f"line {mark.line + 1}: {text}" if mark and text else " ".join(str(problem).split())


def _load_toml(path: Path, text: str, owner: str | None) -> RunFile:
    try:
        document = loads(text, owner)
    except TomlError as error:
        raise _invalid_file(path, error.problems, toml_lines(text)) from error
    spec = document.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    files = [path.parent / file for file in document.env_files]
    return RunFile(path, spec, env_files=files, notes=list(group_by_reason(document.notes)))
