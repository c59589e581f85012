"""Reads the wheels of environments. They are untrusted, so files, bytes and compression methods are limited."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from rlrun_server.hosted_api.base.wire import Json, plain

MAX_FILES = 20_000
"""Maximum number of files in a wheel. Each needs about 350 bytes of memory."""
ENTRY = b"PK\x01\x02"
"""Signature of each entry in the list of files of a zip archive."""
METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Compression methods that can be unpacked incrementally. A few hundred bytes of bzip2 or LZMA may expand to gigabytes
at once.
"""
ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error,
    NotImplementedError, RuntimeError, EOFError, OSError, ValueError, LookupError, OverflowError,
)  # fmt: skip
"""Exceptions of `zipfile` for damaged, encrypted or malicious files."""


class WheelInvalid(Exception):
    """Raised if the data cannot be read as a wheel within the limits."""


@contextmanager
def opened_wheel(data: bytes) -> Iterator[zipfile.ZipFile]:
    """Open a wheel. Raises WheelInvalid if it cannot be opened, or cannot be read while the context is open."""
    if data.count(ENTRY) > MAX_FILES:
        raise WheelInvalid(f"it has more than {MAX_FILES} files")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            yield wheel
    except ERRORS as error:
        raise WheelInvalid(str(error)) from error


def read_start(wheel: zipfile.ZipFile, file: zipfile.ZipInfo, length: int) -> bytes:
    """Return at most `length` bytes of a file, regardless of the size that the wheel declares. Raises WheelInvalid."""
    if file.compress_type not in METHODS:
        raise WheelInvalid(f"it is compressed by method {file.compress_type} instead of deflate")
    with wheel.open(file) as opened:
        return opened.read(length)


MAX_ENTRIES = 1000


def inspect_wheel(data: bytes, path: str, max_bytes: int) -> Json | None:
    """Return at most `max_bytes` of a file, or the entries of a folder. Returns None if the path is missing or
    unreadable.
    """
    wanted = path.strip("/")
    try:
        with opened_wheel(data) as wheel:
            files = {info.filename: info for info in wheel.infolist() if not info.is_dir()}
            if wanted in files:
                return _file(wheel, files[wanted], max_bytes)
            return _folder(list(files.values()), wanted)
    except WheelInvalid:
        return None


def _file(wheel: zipfile.ZipFile, info: zipfile.ZipInfo, max_bytes: int) -> Json:
    content = read_start(wheel, info, max_bytes)
    return {
        "kind": "file",
        "path": plain(info.filename),
        "content": content.decode(errors="replace"),
        "truncated": info.file_size > len(content),
        "total_bytes": info.file_size,
    }


def _folder(files: list[zipfile.ZipInfo], folder: str) -> Json | None:
    prefix = f"{folder}/" if folder else ""
    by_name: dict[str, Json] = {}
    for info in files[: 10 * MAX_ENTRIES]:
        if not info.filename.startswith(prefix):
            continue
        name, slash, _ = info.filename.removeprefix(prefix).partition("/")
        entry: Json = {"name": plain(name), "path": plain(f"{prefix}{name}"), "is_directory": bool(slash)}
        by_name[name] = entry if slash else {**entry, "size": info.file_size}
    if not by_name:
        return None
    entries = [by_name[name] for name in sorted(by_name)[:MAX_ENTRIES]]
    return {"kind": "directory", "path": plain(folder), "entries": entries, "truncated": len(by_name) > MAX_ENTRIES}
