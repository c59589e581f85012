"""Reads an object without a usable index, frame by frame up to the first damaged one."""

from collections.abc import Iterator
from dataclasses import dataclass

import zstandard

from rlrun.storage.samples.index import SampleGroup, SampleIndex, group_of, row_of
from rlrun.storage.samples.object_file import (
    DEFAULT_LIMITS,
    HEADER,
    SKIPPABLE,
    ReadLimits,
    SamplesDamaged,
    lines_of,
    parse_record,
)
from rlrun.storage.samples.record import VERSION, SampleRecord, SampleSplit

PIECE_BYTES = 1024
"""Number of compressed bytes per step if the end of a frame is unknown. A block of 4 bytes may expand to 128 KiB."""


@dataclass(frozen=True)
class ScannedGroup:
    """Group of an object that was read completely."""

    entry: SampleGroup
    lines: list[bytes]
    """Records as stored, which need a tenth of the memory of parsed objects."""

    def records(self, limits: ReadLimits = DEFAULT_LIMITS) -> Iterator[SampleRecord]:
        """Yield the records of the group."""
        return (parse_record(line, limits) for line in self.lines)


@dataclass(frozen=True)
class ScannedSamples:
    """Content of an object that was read completely."""

    groups: list[ScannedGroup]
    problem: str | None
    """Reason why the rest of the object cannot be read, or None if all of it was read."""

    @property
    def records(self) -> list[SampleRecord]:
        """All records of the object."""
        return [record for group in self.groups for record in group.records()]

    def index(self, step: int, split: SampleSplit) -> SampleIndex:
        """Build the missing index of the object."""
        return SampleIndex(v=VERSION, step=step, split=split, groups=[group.entry for group in self.groups])


def scan(data: bytes, limits: ReadLimits = DEFAULT_LIMITS) -> ScannedSamples:
    """Return the records of an object that has no usable index, frame by frame up to the first damaged frame."""
    groups: list[ScannedGroup] = []
    left, count, last = limits.group, 0, None
    try:
        for text in _frames(data, limits):
            left -= len(text)
            if left < 0:
                raise SamplesDamaged(f"the records are larger than {limits.group} bytes when decompressed")
            for line in lines_of(text):
                count += 1
                if count > limits.rows:
                    raise SamplesDamaged(f"the object has more than {limits.rows} records")
                record = parse_record(line, limits)
                key = (record.group, record.environment, record.example)
                if key == last:
                    groups[-1].entry.rows.append(row_of(record))
                    groups[-1].lines.append(line)
                else:
                    groups.append(ScannedGroup(group_of([record]), [line]))
                last = key
    except SamplesDamaged as error:
        return ScannedSamples(groups, str(error))
    return ScannedSamples(groups, None)


def _frames(data: bytes, limits: ReadLimits) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        if len(data) - start >= HEADER.size:
            magic, size = HEADER.unpack_from(data, start)
            if magic == SKIPPABLE:
                start += HEADER.size + size
                continue
        text, used = _one_frame(memoryview(data)[start:], limits.group)
        yield text
        start += used


def _one_frame(data: memoryview, limit: int) -> tuple[bytes, int]:
    worker = zstandard.ZstdDecompressor(max_window_size=max(limit, 1024)).decompressobj()
    chunks: list[bytes] = []
    found = used = 0
    try:
        while not worker.eof and used < len(data):
            piece = data[used : used + PIECE_BYTES]
            text = worker.decompress(piece)
            used += len(piece)
            found += len(text)
            chunks.append(text)
            if found > limit:
                raise SamplesDamaged(f"a frame is larger than {limit} bytes when decompressed")
    except zstandard.ZstdError as error:
        raise SamplesDamaged(f"a frame cannot be decompressed ({error})") from error
    if not worker.eof:
        raise SamplesDamaged("the object ends in the middle of a frame")
    return b"".join(chunks), used - len(worker.unused_data)
