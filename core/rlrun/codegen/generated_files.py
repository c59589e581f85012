"""Writes and checks generated files that are committed."""

import difflib
import sys
from pathlib import Path


def update(
    folder: Path, files: dict[str, str], *, check: bool, command: str, others: frozenset[str] = frozenset()
) -> int:
    """Write `files` (name -> text) to a folder and remove other files, or, if `check` is true, print the
    differences. Returns 1 if a check finds a difference, otherwise 0.

    Files in `others`, which another command generates, and files with other suffixes are not changed.
    """
    known, suffixes = {*files, *others}, {Path(name).suffix for name in files}
    existing = (
        [path for path in folder.glob("*") if path.is_file() and path.suffix in suffixes] if folder.is_dir() else []
    )
    stale = sorted(path for path in existing if path.name not in known)
    if check:
        differences = [line for name, text in files.items() for line in _difference(folder / name, text)]
        differences += [f"{path} is no longer generated" for path in stale]
        if differences:
            print("\n".join(differences), file=sys.stderr)
            print(f"{folder} is out of date: run `{command}` and commit the result", file=sys.stderr)
        return int(bool(differences))
    folder.mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{len(files)} files written to {folder}")
    return 0


def _difference(path: Path, text: str) -> list[str]:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), "schema", lineterm="", n=1)
    return list(lines)
