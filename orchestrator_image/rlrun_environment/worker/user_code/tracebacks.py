"""Location of an exception in user code."""

import re
import traceback
from collections.abc import Sequence
from pathlib import Path

OWN_PACKAGES = {"verifiers", "rlrun_environment", "importlib"}
"""Folder names of code that does not belong to the user."""
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)\n *(?P<code>.+)$', re.MULTILINE)


def user_line(error: BaseException, folder: Path) -> str | None:
    """Return `file:line in function: code` of the innermost frame in `folder`, where the user's package is installed.

    If there is none, uses the innermost frame outside of `OWN_PACKAGES`. Returns None if there is none of these either.
    """
    return _innermost(traceback.extract_tb(error.__traceback__), folder)


def user_line_in(text: str, folder: Path) -> str | None:
    """Find the line as `user_line` does, in a traceback given as text."""
    found = _FRAME.finditer(text)
    return _innermost(
        [traceback.FrameSummary(f["file"], int(f["line"]), f["name"], line=f["code"]) for f in found], folder
    )


def _innermost(frames: Sequence[traceback.FrameSummary], folder: Path) -> str | None:
    inside = [f for f in frames if Path(f.filename).is_relative_to(folder)]
    others = [f for f in frames if not f.filename.startswith("<") and not OWN_PACKAGES & set(Path(f.filename).parts)]
    if not inside and not others:
        return None
    frame = (inside or others)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}: {frame.line}"
