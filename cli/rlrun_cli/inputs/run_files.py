"""Reader of run files (TOML, YAML, JSON), which validates them before anything is sent."""

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
    """Content of a run file."""

    path: Path
    spec: dict[str, Any]
    """Spec of the RLRun with its camelCase names. Defaults are left to the API server."""
    metadata: dict[str, Any] = field(default_factory=dict)
    env_files: list[Path] = field(default_factory=list)
    """Paths in `env_file` of the TOML, resolved against its folder."""

    @property
    def name(self) -> str | None:
        """Name of the object. None if the file has none."""
        return self.metadata.get("name")

    @property
    def namespace(self) -> str | None:
        """Namespace of the object. None if the file has none."""
        return self.metadata.get("namespace")

    @property
    def title(self) -> str:
        """Text from which a name is generated."""
        return str(self.metadata.get("generateName") or self.spec.get("name") or self.path.stem)


def load(path: Path) -> RunFile:
    """Read a file in the format of its suffix. Raises CliError with all problems of the file."""
    readers = {".toml": _load_toml, ".yaml": _load_yaml, ".yml": _load_yaml, ".json": _load_yaml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise CliError(f"the format of {path} is not supported", "use .toml, .yaml or .json", code=INVALID)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        hint = "create one: rlrun init" if isinstance(problem, FileNotFoundError) else None
        raise CliError(f"{path} cannot be read: {problem.strerror}", hint, code=INVALID) from problem
    except UnicodeDecodeError as problem:
        raise CliError(f"{path} is not UTF-8 text", "save it as UTF-8", code=INVALID) from problem
    return reader(path, text)


def _invalid_file(path: Path, found: list[str]) -> CliError:
    count = "1 problem" if len(found) == 1 else f"{len(found)} problems"
    return CliError(f"{path} has {count}", "correct them and try again", code=INVALID, details=found)


def _load_yaml(path: Path, text: str) -> RunFile:
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
    except yaml.YAMLError as problem:
        raise CliError(f"{path} is not valid YAML: {problem}", "correct its syntax", code=INVALID) from problem
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise CliError(
            f"{path} contains {len(documents)} documents instead of one RLRun",
            "use kubectl apply for several objects",
            code=INVALID,
        )
    found = documents[0]
    if found.get("kind") != "RLRun":
        raise CliError(
            f"{path} is a {found.get('kind')}, not an RLRun", "use kubectl apply for other kinds", code=INVALID
        )
    try:
        RLRun.from_object(found)
    except ValidationError as error:
        raise _invalid_file(path, [str(p) for p in problems(error, RLRun)]) from error
    return RunFile(path, found["spec"], found.get("metadata") or {})


def _load_toml(path: Path, text: str) -> RunFile:
    try:
        found = loads(text)
    except TomlError as error:
        raise _invalid_file(path, [str(p) for p in error.problems]) from error
    spec = found.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return RunFile(path, spec, env_files=[path.parent / file for file in found.env_files])
