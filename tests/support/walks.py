"""Walks of CONTRIBUTING.md through the code, and the record of a program that a walk is compared with."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.support.source_tree import ROOT

RECONCILE = "Follow one reconcile"
LOG_PROBABILITY = "Follow one token's log-probability"

_STEP = re.compile(r"^(?P<number>\d+)\. (?P<text>.+?)(?=^\d+\. |\n\n|\Z)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(?P<path>[\w./-]+/[\w.-]+\.\w+)`")
_FUNCTION = re.compile(r"`(?P<name>[A-Za-z_][\w.]*)`\s+in\s+`(?P<path>[^`]+\.py)`")


@dataclass(frozen=True)
class Step:
    """Numbered step of a walk."""

    number: int
    text: str

    @property
    def files(self) -> list[str]:
        """Paths of the files that the step names."""
        return [match["path"] for match in _FILE.finditer(self.text)]

    @property
    def functions(self) -> list[tuple[str, str]]:
        """Path and qualified name of each function that the step names as "`name` in `path`"."""
        return [(match["path"], match["name"]) for match in _FUNCTION.finditer(self.text)]


def read_walk(heading: str, text: str | None = None) -> list[Step]:
    """Return the steps below a heading of CONTRIBUTING.md, or of `text`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8") if text is None else text
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return [Step(int(match["number"]), match["text"]) for match in _STEP.finditer(section)]


class CallRecorder:
    """Context manager that records which functions of the repository this thread calls, in order of the first call."""

    def __init__(self) -> None:
        self._numbers: dict[CodeType, int] = {}
        self._previous: Any = None

    def __enter__(self) -> "CallRecorder":
        self._previous = sys.getprofile()
        sys.setprofile(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._previous)

    def _record(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._numbers.setdefault(frame.f_code, len(self._numbers))

    def first_call(self, path: str, name: str, root: Path = ROOT) -> int | None:
        """Return the number of the first call of a function, or None. A class is called with its first method.

        `name` is the qualified name; a function inside a function is named `outer.inner`.
        """
        file = str(root / path)
        return min(
            (
                number
                for code, number in self._numbers.items()
                if code.co_filename == file and f"{code.co_qualname.replace('.<locals>', '')}.".startswith(f"{name}.")
            ),
            default=None,
        )


def deviations(walk: list[Step], calls: CallRecorder, root: Path = ROOT) -> list[str]:
    """Return a sentence for each function of the walk that was not called, or not in the order of the steps."""
    problems, latest = [], -1
    for step in walk:
        for path, name in step.functions:
            number = calls.first_call(path, name, root)
            if number is None:
                problems.append(f"step {step.number}: {name} of {path} was not called")
            elif number < latest:
                problems.append(f"step {step.number}: {name} of {path} was called before the step above it")
            else:
                latest = number
    return problems
