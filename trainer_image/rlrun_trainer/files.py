"""The files of an artifact to be: small ones in memory, a model's in a folder of their own on disk."""

import tempfile
from collections.abc import Mapping
from pathlib import Path


class Folder:
    """A temporary folder. Whoever is done with it removes it; one that is forgotten goes with the process."""

    def __init__(self, scratch: Path | None = None) -> None:
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        self._room = tempfile.TemporaryDirectory(prefix="rlrun-", dir=scratch)
        self.path = Path(self._room.name)

    def remove(self) -> None:
        """Removes it with all that is in it; again does no harm."""
        self._room.cleanup()


Files = Mapping[str, bytes] | Folder


def source_of(files: Files) -> Mapping[str, bytes] | Path:
    """As `Store.upload_artifact` wants it."""
    return files.path if isinstance(files, Folder) else files


def discard(files: Files) -> None:
    """Frees what the files take on disk."""
    if isinstance(files, Folder):
        files.remove()
