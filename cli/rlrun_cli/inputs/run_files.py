"""A run's file, TOML or YAML, read and judged before anything is sent."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rlrun.api.base.field_errors import problems
from rlrun.api.run import RLRun
from rlrun.api.toml.loader import TomlError, loads

from rlrun_cli.terminal.errors import INVALID, CliError


@dataclass(frozen=True)
class RunFile:
    """What a file asks for."""

    path: Path
    spec: dict[str, Any]
    """Spec of the RLRun under its outside names; defaults are left to the API server."""
    metadata: dict[str, Any] = field(default_factory=dict)
    env_files: list[Path] = field(default_factory=list)
    """Files that the TOML's env_file names, relative to it."""

    @property
    def name(self) -> str | None:
        """The object's own name, if the file gives it one."""
        return self.metadata.get("name")

    @property
    def namespace(self) -> str | None:
        """The object's own namespace, if the file gives it one."""
        return self.metadata.get("namespace")

    @property
    def title(self) -> str:
        """What to make a name of."""
        return str(self.metadata.get("generateName") or self.spec.get("name") or self.path.stem)


def load(path: Path) -> RunFile:
    """Read a file by its ending. Raises CliError with every problem in it."""
    kinds = {".toml": _load_toml, ".yaml": _load_yaml, ".yml": _load_yaml, ".json": _load_yaml}
    reader = kinds.get(path.suffix.lower())
    if reader is None:
        raise CliError(f"{path}: not a kind of file that is known", "use .toml, .yaml or .json", code=INVALID)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        hint = "rlrun init writes one to start from" if isinstance(problem, FileNotFoundError) else None
        raise CliError(f"{path} cannot be read: {problem.strerror}", hint, code=INVALID) from problem
    except UnicodeDecodeError as problem:
        raise CliError(f"{path} is not UTF-8 text", code=INVALID) from problem
    return reader(path, text)


def _refused(path: Path, found: list[str]) -> CliError:
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    return CliError(f"{path} has {count}", "correct them and try again", code=INVALID, details=found)


def _load_yaml(path: Path, text: str) -> RunFile:
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
    except yaml.YAMLError as problem:
        raise CliError(f"{path} is not valid YAML: {problem}", code=INVALID) from problem
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise CliError(
            f"{path} holds {len(documents)} documents, not one RLRun", "use kubectl apply for several", code=INVALID
        )
    found = documents[0]
    if found.get("kind") != "RLRun":
        raise CliError(f"{path} is a {found.get('kind')}, not an RLRun", "use kubectl apply for others", code=INVALID)
    try:
        RLRun.from_object(found)
    except ValidationError as error:
        raise _refused(path, [str(p) for p in problems(error, RLRun)]) from error
    return RunFile(path, found["spec"], found.get("metadata") or {})


def _load_toml(path: Path, text: str) -> RunFile:
    try:
        found = loads(text)
    except TomlError as error:
        raise _refused(path, [str(p) for p in error.problems]) from error
    spec = found.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return RunFile(path, spec, env_files=[path.parent / file for file in found.env_files])
