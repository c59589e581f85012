"""Location of an exception in user code."""

import traceback
from pathlib import Path

OWN_PACKAGES = {"verifiers", "rlrun_environment", "importlib"}
"""Folder names of code that is not the user's."""


def user_line(error: BaseException, folder: Path) -> str | None:
    """Return `file:line in function: code` of the innermost frame in `folder`, where the user's package is installed.

    Without such a frame, of the innermost one outside of `OWN_PACKAGES`. None without any.
    """
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if Path(f.filename).is_relative_to(folder)]
    others = [f for f in frames if not f.filename.startswith("<") and not OWN_PACKAGES & set(Path(f.filename).parts)]
    if not inside and not others:
        return None
    frame = (inside or others)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}: {frame.line}"
