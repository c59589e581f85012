"""The files of an artifact to be: small ones in memory, a model's in a folder of their own on disk."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlrun.service.errors import ProblemError
from safetensors import SafetensorError

from rlrun_trainer.problems import LATER

DISK_FULL = "TrainerDiskFull"


class Folder:
    """A temporary folder. Whoever is done with it removes it; one that is forgotten goes with the process.

    Raises ProblemError where none can be made.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        try:
            if scratch is not None:
                scratch.mkdir(parents=True, exist_ok=True)
            self._room = tempfile.TemporaryDirectory(prefix="rlrun-", dir=scratch)
        except OSError as error:
            raise _full(scratch or Path(tempfile.gettempdir()), error) from error
        self.path = Path(self._room.name)

    def remove(self) -> None:
        """Removes it with all that is in it; again does no harm."""
        self._room.cleanup()


Files = Mapping[str, bytes] | Folder


def source_of(files: Files) -> Mapping[str, bytes] | Path:
    """As `Store.upload_artifact` wants it."""
    return files.path if isinstance(files, Folder) else files


@contextmanager
def writing(folder: Folder) -> Iterator[None]:
    """Around what is written to the folder, which goes where it does not fit. Raises ProblemError then."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        folder.remove()
        raise _full(folder.path, error) from error
    except BaseException:
        folder.remove()
        raise


def size_of(files: Files) -> int:
    """Bytes of all files."""
    if isinstance(files, Folder):
        return sum(path.stat().st_size for path in files.path.rglob("*") if path.is_file())
    return sum(len(data) for data in files.values())


def on_disk(files: Files, scratch: Path | None) -> Files:
    """Return the files in a folder below `scratch`, or as they are without one. Raises ProblemError on a full disk."""
    if scratch is None or isinstance(files, Folder):
        return files
    folder = Folder(scratch)
    with writing(folder):
        for name, data in files.items():
            (folder.path / name).write_bytes(data)
    return folder


def discard(files: Files) -> None:
    """Frees what the files take on disk."""
    if isinstance(files, Folder):
        files.remove()


def _full(place: Path, error: Exception) -> ProblemError:
    message = f"{place} cannot be written: {error}. Give the trainer's pod more ephemeral storage"
    return ProblemError.of(LATER, DISK_FULL, message)
