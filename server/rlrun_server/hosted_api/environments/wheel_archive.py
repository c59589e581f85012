"""Wheels that tenants have made, opened with limits."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

MAX_FILES = 20_000
"""Files of a wheel. Each needs about 350 bytes in memory, and many times the time of its name."""
ENTRY = b"PK\x01\x02"
"""Beginning of each entry in the list of files."""
METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Compression that is unpacked by the piece. A few hundred bytes of bzip2 or LZMA become gigabytes at once."""
ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error,
    NotImplementedError, RuntimeError, EOFError, OSError, ValueError, LookupError, OverflowError,
)  # fmt: skip
"""Exceptions of `zipfile` for files that are damaged, encrypted or made to deceive."""


class WheelInvalid(Exception):
    """The data cannot be read as a wheel within the limits."""


@contextmanager
def opened_wheel(data: bytes) -> Iterator[zipfile.ZipFile]:
    """Open a wheel. Raises WheelInvalid, also for errors while the context is open."""
    if data.count(ENTRY) > MAX_FILES:
        raise WheelInvalid(f"it has more than {MAX_FILES} files")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            yield wheel
    except ERRORS as error:
        raise WheelInvalid(str(error)) from error


def read_start(wheel: zipfile.ZipFile, file: zipfile.ZipInfo, length: int) -> bytes:
    """Return at most `length` bytes of a file: the size that a wheel declares is its maker's. Raises WheelInvalid."""
    if file.compress_type not in METHODS:
        raise WheelInvalid(f"it is compressed by method {file.compress_type}, and not by deflate")
    with wheel.open(file) as opened:
        return opened.read(length)
