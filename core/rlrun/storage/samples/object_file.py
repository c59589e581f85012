"""Objects with rollouts: JSON lines in zstd frames, one frame per group, and the index at the end.

[zstd frame of group 1] [zstd frame of group 2] ... [skippable frame: zstd(index), its length, "RLIX"]

A program reads only the tail of an object to list rollouts, and one range of it to show the texts of a group. Programs
without support for the index skip it (RFC 8878, 3.1.2): `zstd -dc` prints all lines. All input may be damaged or
hostile: sizes in an object are checked against limits before use, and no frame is decompressed beyond its limit.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
"""Maximum size in bytes of an object without its index. For groups that do not fit, only the rows are stored."""
MAX_GROUP_BYTES = 64 * 1024**2
"""Maximum size in bytes of a group's lines before compression."""
MAX_INDEX_BYTES = 32 * 1024**2
"""Maximum size in bytes of an index before compression."""
MAX_PACKED_INDEX = 16 * 1024**2
"""Maximum size in bytes of a compressed index."""
MAX_ROWS = 131_072
"""Maximum number of rollouts in an object."""
MAX_ERRORS = 1000
"""Maximum number of validation errors for which the first error is reported. If there are more, only their number is
reported, because a list of all errors may need more memory than the index.
"""
FULL_ROWS = 16_384
"""Maximum number of rows with which an index contains answer previews and the values of reward functions."""


class SamplesDamaged(Exception):
    """Raised if an object with rollouts, or a part of it, cannot be read."""


@dataclass(frozen=True)
class ReadLimits:
    """Maximum sizes in bytes when reading. A process that reads for many users uses lower limits."""

    packed_index: int = MAX_PACKED_INDEX
    index: int = MAX_INDEX_BYTES
    rows: int = MAX_ROWS
    """Maximum total number of rollouts and groups of an object."""
    group: int = MAX_GROUP_BYTES
    """Maximum size of the uncompressed lines of a group, or of an object without a usable index."""
    record: int = MAX_GROUP_BYTES
    """Maximum size of one line."""
    scan: int = MAX_OBJECT_BYTES + MAX_PACKED_INDEX
    """Maximum size of an object without a usable index, which is read completely."""


DEFAULT_LIMITS = ReadLimits()


@dataclass(frozen=True)
class EncodedSamples:
    """Encoded object with its index."""

    data: bytes
    index: SampleIndex
    omitted: int
    """Number of rollouts beyond MAX_ROWS, which are not stored."""


def encode_samples(step: int, split: SampleSplit, groups: Iterable[list[SampleRecord]]) -> EncodedSamples:
    """Encode an object with these groups. Empty groups are omitted. The encoding is CPU-intensive."""
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
    index = _limit_rows(SampleIndex(v=VERSION, step=step, split=split, groups=entries))
    text = index.__pydantic_serializer__.to_json(index, by_alias=True, exclude_none=True, exclude_defaults=True)
    packed = compressor.compress(text)
    frames += [HEADER.pack(SKIPPABLE, len(packed) + FOOTER.size), packed, FOOTER.pack(len(packed), MARK)]
    return EncodedSamples(b"".join(frames), index, omitted)


def _limit_rows(index: SampleIndex) -> SampleIndex:
    if sum(len(group.rows) for group in index.groups) <= FULL_ROWS:
        return index
    groups = [
        group.model_copy(update={"rows": [row.model_copy(update={"text": "", "rewards": {}}) for row in group.rows]})
        for group in index.groups
    ]
    return index.model_copy(update={"groups": groups})


def index_size(tail: bytes, limits: ReadLimits = DEFAULT_LIMITS) -> int:
    """Return the number of bytes of the object's tail that hold the index.

    Raises SamplesDamaged if the object has no index, or if the index is larger than the limit.
    """
    length, mark = FOOTER.unpack(tail[-FOOTER.size :]) if len(tail) >= FOOTER.size else (0, b"")
    if mark != MARK:
        raise SamplesDamaged("the object ends without an index")
    if length > limits.packed_index:
        raise SamplesDamaged(f"the index is {length} bytes, above the limit of {limits.packed_index}")
    return int(length) + FOOTER.size


def decode_index(tail: bytes, limits: ReadLimits = DEFAULT_LIMITS) -> SampleIndex:
    """Decode the index at the end of `tail`, which must have at least `index_size` bytes. Raises SamplesDamaged."""
    size = index_size(tail, limits)
    if size > len(tail):
        raise SamplesDamaged("the index is incomplete")
    text = decompress(tail[len(tail) - size : len(tail) - FOOTER.size], limits.index)
    _check_rows(text, limits.rows)
    try:
        index = SampleIndex.model_validate_json(text)
    except ValidationError as error:
        raise SamplesDamaged(f"the index is invalid: {_first_error(error)}") from None
    if index.v != VERSION:
        raise SamplesDamaged(f"the index has version {index.v}, but this program supports {VERSION}")
    return index


def _first_error(error: ValidationError) -> str:
    count = error.error_count()
    if count > MAX_ERRORS:
        return f"{count} values are invalid"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg']}"


def _check_rows(text: bytes, limit: int) -> None:
    """Raise SamplesDamaged if there are more rollouts and groups than the limit, because parsed objects take up ten
    times as much memory as the text.
    """
    # Each row or group has one of these keys, possibly with escaped letters.
    if text.count(b'"rollout"') + text.count(b'"rows"') + text.count(b"\\u") <= limit:
        return
    try:
        groups = json.loads(text)["groups"]
        count = len(groups) + sum(len(group["rows"]) for group in groups)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise SamplesDamaged("the index is not valid") from error
    if count > limit:
        raise SamplesDamaged(f"the index has {count} rollouts and groups, above the limit of {limit}")


def iterate_group(frame: bytes, entry: SampleGroup, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[SampleRecord]:
    """Yield the records of a group from its zstd frame, one by one. Raises SamplesDamaged."""
    return _check_records(iterate_records(decompress(frame, limits.group), limits), entry)


def _check_records(records: Iterable[SampleRecord], entry: SampleGroup) -> Iterator[SampleRecord]:
    rows = iter(entry.rows)
    for record in records:
        row = next(rows, None)
        if row is None or (record.group, record.rollout) != (entry.group, row.rollout):
            raise SamplesDamaged("the records do not match the index")
        yield record
    if next(rows, None) is not None:
        raise SamplesDamaged("the records do not match the index")


def iterate_records(text: bytes, limits: ReadLimits) -> Iterator[SampleRecord]:
    """Yield the records in the lines of a decompressed frame. Raises SamplesDamaged."""
    for count, line in enumerate(lines_of(text), 1):
        if count > limits.rows:
            raise SamplesDamaged(f"a frame has more than {limits.rows} records")
        yield parse_record(line, limits)


def parse_record(line: bytes, limits: ReadLimits) -> SampleRecord:
    """Parse one line. Raises SamplesDamaged."""
    if len(line) > limits.record:
        raise SamplesDamaged(f"a record is {len(line)} bytes, above the limit of {limits.record}")
    try:
        return SampleRecord.from_line(line)
    except ValueError as error:
        raise SamplesDamaged(str(error)) from error


def lines_of(text: bytes) -> Iterator[bytes]:
    """Yield the lines that are not empty, without copying the whole text."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        if end > start:
            yield text[start:end]
        start = end + 1


def decompress(frame: bytes, limit: int) -> bytes:
    """Decompress a zstd frame. Raises SamplesDamaged if the frame is invalid or its content exceeds `limit` bytes."""
    # The size in the frame is ignored: decompression stops at the limit.
    decompressor = zstandard.ZstdDecompressor(max_window_size=max(limit, 1024))
    try:
        with decompressor.stream_reader(frame) as reader:
            content = _read_up_to(reader, limit + 1)
    except zstandard.ZstdError as error:
        raise SamplesDamaged(f"a frame cannot be decompressed ({error})") from error
    if len(content) > limit:
        raise SamplesDamaged(f"a frame is larger than {limit} bytes when decompressed")
    return content


def _read_up_to(reader: Any, limit: int) -> bytes:
    chunks: list[bytes] = []
    left = limit
    while left > 0 and (chunk := reader.read(min(left, 2**20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
