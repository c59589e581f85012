"""Files of an artifact before its upload, in memory or in a temporary folder. A full model is always in a folder."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlrun.constants import LATER, Reason
from rlrun.service.errors import ProblemError

DISK_FULL = Reason.TRAINER_DISK_FULL


class TempFolder:
    """Temporary folder. Its owner should remove it as early as possible. A folder left in `scratch` is removed when the
    trainer starts again.

    Raises ProblemError if it cannot be created.
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
        """Remove the folder and its content. Repeated calls have no effect."""
        self._room.cleanup()


Files = Mapping[str, bytes] | TempFolder


def source_of(files: Files) -> Mapping[str, bytes] | Path:
    """Return the files in the form that `Store.upload_artifact` accepts."""
    return files.path if isinstance(files, TempFolder) else files


@contextmanager
def writing(folder: TempFolder, *failures: type[Exception]) -> Iterator[None]:
    """Context for writing to the folder, which is removed if writing fails. Raises ProblemError for an OSError,
    such as a full disk.

    `failures` are exception types other than OSError with which a library reports a full disk.
    """
    try:
        with writing_to(folder.path, *failures):
            yield
    except BaseException:
        folder.remove()
        raise


@contextmanager
def writing_to(path: Path, *failures: type[Exception]) -> Iterator[None]:
    """Context for writing to a folder that another process owns. Unlike `writing`, it keeps the folder if writing
    fails.
    """
    full_disk: tuple[type[Exception], ...] = (OSError, *failures)
    try:
        yield
    except full_disk as error:
        raise _full(path, error) from error


def size_of(files: Files) -> int:
    """Return the total size in bytes."""
    if isinstance(files, TempFolder):
        return sum(path.stat().st_size for path in files.path.rglob("*") if path.is_file())
    return sum(len(data) for data in files.values())


def on_disk(files: Files, scratch: Path | None) -> Files:
    """Return the files in a folder below `scratch`, or unchanged if `scratch` is None or they already are in a folder.
    Raises ProblemError if the disk is full.
    """
    if scratch is None or isinstance(files, TempFolder):
        return files
    folder = TempFolder(scratch)
    with writing(folder):
        for name, data in files.items():
            (folder.path / name).write_bytes(data)
    return folder


def discard(files: Files) -> None:
    """Remove the files from disk."""
    if isinstance(files, TempFolder):
        files.remove()


def _full(place: Path, error: Exception) -> ProblemError:
    advice = "If the disk is full, give the trainer's pod more ephemeral storage."
    return ProblemError.of(LATER, DISK_FULL, f"Could not write to {place}: {error}. {advice}")
