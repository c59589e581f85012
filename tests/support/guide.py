"""Guides as tests: the commands in a guide are run in its order, and must print what the guide shows.

    ```bash            a command that is run; it must end with exit code 0
    ```bash e2e        one that needs pods: run on the cluster only, passed over elsewhere
    ```bash fails      one that is shown because it is refused: it must not end with 0
    ```text            right after a block: what it prints (`...` stands for anything, on a line of its own for lines)
    <!-- test: x y --> invisible, between blocks: the test does something (`x` is one of its steps, `y` a word for it)

Every block is a bash of its own (`set -euo pipefail`) in the same folder; exported variables go from one to the next.
"""

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.source_tree import PYTHONPATH

SECONDS = 300
"""For one block."""
MAKE_VARIABLES = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")
SHOWN = "text"
FENCE = re.compile(r"^```(\w*)[ \t]*([^\n]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^<!-- test: (.+?) -->[ \t]*$", re.MULTILINE)


class GuideError(AssertionError):
    """The guide says something that is not so; names file and line."""


@dataclass(frozen=True)
class Block:
    """A command of a guide."""

    line: int
    """Of its first line in the guide."""
    text: str
    marks: frozenset[str]
    shown: str | None = None
    """What the guide shows as its output."""


@dataclass(frozen=True)
class Step:
    """Something that the test does between two commands."""

    line: int
    words: tuple[str, ...]


def parse(text: str) -> list[Block | Step]:
    """Blocks and steps in the order of the guide. Raises GuideError for marks that mean nothing."""
    found: list[tuple[int, Block | Step]] = []
    fences = list(FENCE.finditer(text))
    for number, fence in enumerate(fences):
        language, info, body = fence[1], fence[2], fence[3]
        line = text.count("\n", 0, fence.start(3)) + 1
        if language != "bash":
            continue
        marks = frozenset(info.split())
        if unknown := marks - {"e2e", "fails"}:
            raise GuideError(f"line {line}: unknown mark {', '.join(sorted(unknown))}")
        after = fences[number + 1] if number + 1 < len(fences) else None
        shown = None
        if after is not None and after[1] == SHOWN and not text[fence.end() : after.start()].strip():
            shown = after[3]
        found.append((fence.start(), Block(line, body, marks, shown)))
    for step in STEP.finditer(text):
        if not any(f.start() < step.start() < f.end() for f in fences):
            found.append((step.start(), Step(text.count("\n", 0, step.start()) + 1, tuple(step[1].split()))))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def matches(shown: str, printed: str) -> bool:
    """Whether the output is the shown one; spaces at the ends of lines and around the whole do not count."""
    parts = []
    for line in shown.strip().splitlines():
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            # Columns are as wide as their widest value, which may differ from the guide's.
            words = [r"[^\n]*?".join(re.escape(p) for p in word.split("...")) for word in line.split()]
            parts.append(r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n")
    text = printed.strip()
    return re.fullmatch("".join(parts), f"{text}\n" if text else "") is not None


@dataclass
class Runner:
    """Runs a guide. `steps` are the functions behind `<!-- test: ... -->`, called with the words after the first."""

    guide: Path
    folder: Path
    environment: Mapping[str, str]
    steps: Mapping[str, Callable[..., None]] = field(default_factory=dict)
    e2e: bool = False
    seconds: float = SECONDS

    def run(self) -> int:
        """How many blocks were run. Raises GuideError at the first that is not as the guide says."""
        count = 0
        for entry in parse(self.guide.read_text(encoding="utf-8")):
            if isinstance(entry, Step):
                self._step(entry)
            elif self.e2e or "e2e" not in entry.marks:
                self._block(entry)
                count += 1
        return count

    def _step(self, step: Step) -> None:
        name, *words = step.words
        if name not in self.steps:
            raise GuideError(f"{self.guide.name}:{step.line}: the test has no step {name!r}")
        self.steps[name](*words)

    def _block(self, block: Block) -> None:
        place = f"{self.guide.name}:{block.line}"
        state = self.folder / ".exported"
        before = f". {state}\n" if state.exists() else ""
        script = f"set -euo pipefail\n{before}trap 'export -p > {state}' EXIT\n{block.text}"
        try:
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=self.folder,
                env={**environment_of_a_shell(), **self.environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=self.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise GuideError(f"{place}: not done after {self.seconds} s:\n{block.text}\n{late.output}") from None
        said = f"{block.text}\nprinted (exit code {done.returncode}):\n{done.stdout}"
        if (done.returncode == 0) is ("fails" in block.marks):
            raise GuideError(f"{place}: the command {'ended well' if done.returncode == 0 else 'failed'}:\n{said}")
        if block.shown is not None and not matches(block.shown, done.stdout):
            raise GuideError(f"{place}: the guide shows\n{block.shown}\nbut\n{said}")


def environment_of_a_shell() -> dict[str, str]:
    """Return the environment without the variables by which a make that runs the tests would change one in a guide."""
    return {name: value for name, value in os.environ.items() if name not in MAKE_VARIABLES}


def install_commands(folder: Path, python: str, kubectl: Path | str) -> str:
    """Puts `rlrun` and `kubectl` into a folder; gives the PATH that finds them first."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = {
        "rlrun": f"env PYTHONPATH={PYTHONPATH} {python} -m rlrun_cli",
        "kubectl": str(kubectl),
        "python": f"env PYTHONPATH={PYTHONPATH} {python}",
    }
    for name, command in commands.items():
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        file.chmod(0o755)
    return f"{folder}:{os.environ.get('PATH', '')}"
