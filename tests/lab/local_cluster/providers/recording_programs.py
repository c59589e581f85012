"""Commands docker, kind, kubectl and helm on PATH that record their arguments. program_answers.py has their answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.lab.local_cluster.providers import program_answers
from tests.lab.local_cluster.providers.program_answers import State

VERSIONS = {
    "kind": "kind v0.33.0 go1.26.6 linux/amd64",
    "helm": "v3.22.0",
    "kubectl": json.dumps({"clientVersion": {"major": "1", "minor": "35", "gitVersion": "v1.35.4"}}),
}


@dataclass(frozen=True)
class RecordingPrograms:
    """The installed programs, seen by a test."""

    folder: Path
    """The only folder of PATH."""
    state_file: Path

    @property
    def calls(self) -> list[list[str]]:
        """All calls so far: name of the program and its arguments."""
        file = Path(f"{self.state_file}.calls")
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def calls_of(self, *words: str) -> list[list[str]]:
        """Return the calls that begin with these words."""
        return [call for call in self.calls if call[: len(words)] == list(words)]

    @contextmanager
    def state(self) -> Iterator[State]:
        """Yield the state; changes are kept."""
        state = program_answers.read_state(self.state_file)
        yield state
        program_answers.write_state(self.state_file, state)

    def remove(self, name: str) -> None:
        """Uninstall a program."""
        (self.folder / name).unlink()


def install(root: Path) -> RecordingPrograms:
    """Write the programs and an engine without images or clusters."""
    folder, state_file = root / "bin", root / "state.json"
    folder.mkdir()
    packages = str(Path(yaml.__file__).parents[1])
    state: State = {"engine": ["linux", "amd64"], "images": {}, "clusters": {}, "versions": VERSIONS}
    program_answers.write_state(state_file, state | {"packages": packages})
    for name in program_answers.PROGRAMS:
        # -S and -E: a test makes a hundred calls, and half of the time of each would be the start of Python.
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import program_answers as p; p.main()"
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E -c "{code}" "{state_file}" {name} "$@"\n')
        script.chmod(0o755)
    return RecordingPrograms(folder, state_file)
