"""Where the repository lies, and how a process that a test starts finds its packages."""

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _package_folders() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders: list[str] = settings["tool"]["pytest"]["ini_options"]["pythonpath"]
    return [str((ROOT / folder).resolve()) for folder in folders]


PYTHONPATH = os.pathsep.join(_package_folders())
"""Value of the variable: pytest's own `pythonpath` is not inherited by processes."""
