"""Objects with rollouts: JSON lines in zstd frames, one frame per group, and the index at the end.

    [zstd frame of group 1] [zstd frame of group 2] ... [skippable frame: zstd(index), its length, "RLIX"]

The tail of an object is enough for a list, and one range for the texts of a group. Programs that know nothing of the
index skip it (RFC 8878, 3.1.2): `zstd -dc` prints all lines. Older objects are one frame without an index.

Everything that is read may be damaged or hostile: no size that an object states is believed before it was compared with
a limit, and no frame is decompressed to more than its limit.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import zstandard
from pydantic import ValidationError

from rlrun.storage.samples.bounds import bounded_line
from rlrun.storage.samples.index import SampleGroup, SampleIndex, group_of
from rlrun.storage.samples.record import VERSION, SampleRecord, SampleSplit

SKIPPABLE = 0x184D2A50
MARK = b"RLIX"
HEADER = struct.Struct("<II")
"""Magic number and size of a skippable frame."""
FOOTER = struct.Struct("<I4s")
"""Length of the compressed index, and MARK."""
LEVEL = 3
MAX_OBJECT_BYTES = 64 * 1024**2
"""Largest size of an object without its index. Groups beyond it keep their rows only."""
MAX_GROUP_BYTES = 64 * 1024**2
"""Largest size of a group's lines before compression."""
MAX_INDEX_BYTES = 32 * 1024**2
"""Largest size of an index before compression."""
MAX_PACKED_INDEX = 16 * 1024**2
"""Largest size of a compressed index."""
MAX_ROWS = 131_072
"""Largest number of rollouts in an object."""
FULL_ROWS = 16_384
"""Rows up to which an index has the preview of answers and the values of reward functions."""


PIECE_BYTES = 1024
"""Bytes of a frame that are decompressed at once where its end is not known. A block of 4 bytes may hold 128 KiB."""


class SamplesDamaged(Exception):
    """An object with rollouts, or a part of one, cannot be read."""


@dataclass(frozen=True)
class EncodedSamples:
    """An object, and the index in it."""

    data: bytes
    index: SampleIndex
    omitted: int
    """Number of rollouts beyond MAX_ROWS, of which nothing is stored."""


def encode_samples(step: int, split: SampleSplit, groups: Iterable[list[SampleRecord]]) -> EncodedSamples:
    """Return the object with these groups. Empty groups are left out. Takes CPU time."""
    compressor = zstandard.ZstdCompressor(level=LEVEL)
    frames: list[bytes] = []
    entries: list[SampleGroup] = []
    offset = rows = omitted = 0
    for records in groups:
        if not records:
            continue
        if rows + len(records) > MAX_ROWS:
            omitted += len(records)
            continue
        rows += len(records)
        lines = b"".join(bounded_line(record) for record in records)
        frame = compressor.compress(lines) if len(lines) <= MAX_GROUP_BYTES else b""
        if offset + len(frame) > MAX_OBJECT_BYTES:
            frame = b""
        entries.append(group_of(records, offset if frame else 0, len(frame)))
        frames.append(frame)
        offset += len(frame)
    index = _limited(SampleIndex(v=VERSION, step=step, split=split, groups=entries))
    text = index.__pydantic_serializer__.to_json(index, by_alias=True, exclude_none=True, exclude_defaults=True)
    packed = compressor.compress(text)
    frames += [HEADER.pack(SKIPPABLE, len(packed) + FOOTER.size), packed, FOOTER.pack(len(packed), MARK)]
    return EncodedSamples(b"".join(frames), index, omitted)


def _limited(index: SampleIndex) -> SampleIndex:
    if sum(len(group.rows) for group in index.groups) <= FULL_ROWS:
        return index
    groups = [
        group.model_copy(update={"rows": [row.model_copy(update={"text": "", "rewards": {}}) for row in group.rows]})
        for group in index.groups
    ]
    return index.model_copy(update={"groups": groups})


def index_size(tail: bytes) -> int | None:
    """Return the number of bytes of the object's tail that hold the index, None for an object without one.

    Raises SamplesDamaged for a size above the limit.
    """
    if len(tail) < FOOTER.size:
        return None
    length, mark = FOOTER.unpack(tail[-FOOTER.size :])
    if mark != MARK:
        return None
    if length > MAX_PACKED_INDEX:
        raise SamplesDamaged(f"the index has {length} bytes, and at most {MAX_PACKED_INDEX} are read")
    return int(length) + FOOTER.size


def decode_index(tail: bytes) -> SampleIndex:
    """Return the index at the end of `tail`, which is at least `index_size` bytes long. Raises SamplesDamaged."""
    size = index_size(tail)
    if size is None or size > len(tail):
        raise SamplesDamaged("the index is incomplete")
    text = decompress(tail[len(tail) - size : len(tail) - FOOTER.size], MAX_INDEX_BYTES)
    try:
        found = SampleIndex.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise SamplesDamaged(f"the index is not valid: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if found.v != VERSION:
        raise SamplesDamaged(f"the index has version {found.v}, and this program reads {VERSION}")
    return found


def decode_group(frame: bytes, entry: SampleGroup) -> list[SampleRecord]:
    """Return the records of a group from its frame. Raises SamplesDamaged."""
    records = decode_lines(decompress(frame, MAX_GROUP_BYTES))
    if [(record.group, record.rollout) for record in records] != [(entry.group, row.rollout) for row in entry.rows]:
        raise SamplesDamaged("the records are not those that the index names")
    return records


def decode_lines(text: bytes) -> list[SampleRecord]:
    """Parse the lines of a frame. Raises SamplesDamaged."""
    lines = [line for line in text.split(b"\n") if line]
    if len(lines) > MAX_ROWS:
        raise SamplesDamaged(f"a frame has {len(lines)} records, and at most {MAX_ROWS} are read")
    try:
        return [SampleRecord.from_line(line) for line in lines]
    except ValueError as error:
        raise SamplesDamaged(str(error)) from error


def decompress(frame: bytes, limit: int) -> bytes:
    """Return the content of one zstd frame. Raises SamplesDamaged if it is not one, or has more than `limit` bytes."""
    # The size that the frame states is not used: it decompresses until the limit at most.
    decompressor = zstandard.ZstdDecompressor(max_window_size=max(limit, 1024))
    try:
        with decompressor.stream_reader(frame) as reader:
            found = _read_up_to(reader, limit + 1)
    except zstandard.ZstdError as error:
        raise SamplesDamaged(f"a frame cannot be decompressed ({error})") from error
    if len(found) > limit:
        raise SamplesDamaged(f"a frame has more than {limit} bytes when decompressed")
    return found


def _read_up_to(reader: Any, limit: int) -> bytes:
    chunks: list[bytes] = []
    left = limit
    while left > 0 and (chunk := reader.read(min(left, 2**20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


@dataclass(frozen=True)
class ScannedSamples:
    """Content of an object that was read from its beginning."""

    records: list[SampleRecord]
    problem: str | None
    """Reason for which the rest of the object cannot be read."""


def scan(data: bytes) -> ScannedSamples:
    """Return the records of an object that has no usable index, frame by frame up to the first damaged one."""
    records: list[SampleRecord] = []
    left = MAX_GROUP_BYTES
    try:
        for text in _frames(data):
            left -= len(text)
            if left < 0:
                raise SamplesDamaged(f"its records have more than {MAX_GROUP_BYTES} bytes when decompressed")
            records += decode_lines(text)
            if len(records) > MAX_ROWS:
                raise SamplesDamaged(f"it has more than {MAX_ROWS} records")
    except SamplesDamaged as error:
        return ScannedSamples(records, str(error))
    return ScannedSamples(records, None)


def _frames(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        if len(data) - start >= HEADER.size:
            magic, size = HEADER.unpack_from(data, start)
            if magic == SKIPPABLE:
                start += HEADER.size + size
                continue
        text, used = _one_frame(memoryview(data)[start:])
        yield text
        start += used


def _one_frame(data: memoryview) -> tuple[bytes, int]:
    worker = zstandard.ZstdDecompressor(max_window_size=MAX_GROUP_BYTES).decompressobj()
    chunks: list[bytes] = []
    found = used = 0
    try:
        while not worker.eof and used < len(data):
            piece = data[used : used + PIECE_BYTES]
            text = worker.decompress(piece)
            used += len(piece)
            found += len(text)
            chunks.append(text)
            if found > MAX_GROUP_BYTES:
                raise SamplesDamaged(f"a frame has more than {MAX_GROUP_BYTES} bytes when decompressed")
    except zstandard.ZstdError as error:
        raise SamplesDamaged(f"a frame cannot be decompressed ({error})") from error
    if not worker.eof:
        raise SamplesDamaged("the object ends in the middle of a frame")
    return b"".join(chunks), used - len(worker.unused_data)


def index_of(
    records: list[SampleRecord], step: int, split: SampleSplit
) -> tuple[SampleIndex, list[list[SampleRecord]]]:
    """Return the index of records that were scanned, and the records of each of its groups."""
    groups = [list(found) for _, found in groupby(records, key=lambda r: (r.group, r.environment, r.example))]
    return SampleIndex(v=VERSION, step=step, split=split, groups=[group_of(found) for found in groups]), groups
