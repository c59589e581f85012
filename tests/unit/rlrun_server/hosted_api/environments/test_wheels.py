"""Wheels that tenants have made: damaged ones, and such that need the memory of the server."""

import bz2
import hashlib
import io
import random
import struct
import tracemalloc
import zipfile

import pytest
from rlrun_server.hosted_api.environments.package_uploads import UploadTicket, check_wheel
from rlrun_server.hosted_api.environments.wheels import MAX_FILES, inspect_wheel
from rlrun_server.rest.base.problems import RestError

MIB = 1024**2


def wheel(method: int = zipfile.ZIP_DEFLATED, text: bytes = b"hello" * 100) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a.txt", text)
        archive.writestr("a-1.dist-info/METADATA", "Name: a\n")
    return file.getvalue()


def many_files(count: int) -> bytes:
    """A list of files that are not there, 48 bytes each."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 0, 20, 0, 0, 0, 0, 33, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0)
    names = (b"%c%c" % (97 + n % 26, 97 + n // 26 % 26) for n in range(count))
    listed = b"".join(entry + name for name in names)
    return listed + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(listed), 0, 0)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_file_that_is_unpacked_at_once_is_not_read(method: int) -> None:
    data = wheel(method, bytes(64 * MIB))
    assert len(data) < MIB
    tracemalloc.start()
    try:
        assert inspect_wheel(data, "a.txt", MIB) is None
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    assert len(bz2.compress(bytes(64 * MIB))) < 1000  # a request costs its maker nothing


def test_of_a_large_file_only_the_beginning_is_unpacked() -> None:
    data = wheel(text=bytes(64 * MIB))
    tracemalloc.start()
    try:
        found = inspect_wheel(data, "a.txt", 1000)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    assert found is not None
    assert (len(found["content"]), found["total_bytes"]) == (1000, 64 * MIB)


def test_a_wheel_with_too_many_files_is_not_opened() -> None:
    data = many_files(MAX_FILES + 1)
    tracemalloc.start()
    try:
        assert inspect_wheel(data, "", 1000) is None
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    sha256 = hashlib.sha256(data).hexdigest()
    ticket = UploadTicket(
        kind="wheel", namespace="team", owner="team", name="a", version="1", file="a-1.whl", sha256=sha256,
        size=len(data), expires=0,
    )  # fmt: skip
    with pytest.raises(RestError) as refused:
        check_wheel(data, ticket)
    assert refused.value.status == 422
    assert f"more than {MAX_FILES} files" in refused.value.detail


def test_damaged_wheels_are_no_error_of_the_server() -> None:
    data, some = wheel(), random.Random(1)
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(some.choice([1, 1, 2, 4])):
            damaged[some.randrange(len(damaged))] = some.choice([0, 255, some.randrange(256)])
        inspect_wheel(bytes(damaged), some.choice(["a.txt", ""]), 1000)
