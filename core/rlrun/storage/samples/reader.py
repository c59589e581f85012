"""Reading of stored rollouts: the index of an object by one request, the records of a group by one more.

The requests are given as a function, so that a program can send them with its own client. What is read may be damaged:
a damaged group raises SamplesDamaged when it is read, the others stay readable; an object whose index is damaged or
missing is read as a whole, up to its first damaged frame.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rlrun.storage.layout import S3Uri
from rlrun.storage.samples.index import SampleGroup, SampleIndex
from rlrun.storage.samples.object_file import (
    DEFAULT_LIMITS,
    MAX_OBJECT_BYTES,
    ReadLimits,
    SamplesDamaged,
    decode_index,
    index_size,
    iterate_group,
)
from rlrun.storage.samples.record import SampleRecord, SampleSplit
from rlrun.storage.samples.scan import ScannedGroup, scan

TAIL_BYTES = 96 * 1024
"""Bytes of the first request. The index of 512 rollouts has about 40 KB."""

ReadRange = Callable[[S3Uri, int | None, int], bytes]
"""Reads up to `length` bytes of an object, from `start` or, if it is None, from the end. `Store.get_range` is one."""


@dataclass(frozen=True)
class OpenSamples:
    """One object with rollouts, opened."""

    index: SampleIndex
    problem: str | None
    """Damage of the object as a whole, for the user. None: none was found."""
    _uri: S3Uri
    _read: ReadRange
    _scanned: dict[int, ScannedGroup] = field(default_factory=dict)
    """Groups by their number, of an object that was read as a whole."""
    _limits: ReadLimits = DEFAULT_LIMITS

    @property
    def scanned_bytes(self) -> int:
        """Bytes of the records in memory, of an object that was read as a whole."""
        return sum(len(line) for group in self._scanned.values() for line in group.lines)

    def has_texts(self, group: SampleGroup) -> bool:
        """Return whether records of the group are stored."""
        return group.size > 0 or bool(self._scanned)

    def records(self, group: SampleGroup) -> list[SampleRecord]:
        """Return the records of a group of the index. Raises SamplesDamaged, and what the read function raises."""
        return list(self.iterate(group))

    def iterate(self, group: SampleGroup) -> Iterator[SampleRecord]:
        """Yield the records of a group, one after the other. Raises as `records`."""
        number = next((n for n, known in enumerate(self.index.groups) if known is group), None)
        if number in self._scanned:
            yield from self._scanned[number].records(self._limits)
            return
        if group.size == 0:
            raise SamplesDamaged(
                f"the texts of group {group.group} are not stored, because the step's rollouts exceed the limit of "
                f"{MAX_OBJECT_BYTES} bytes"
            )
        if group.size > min(MAX_OBJECT_BYTES, self._limits.scan):
            raise SamplesDamaged(f"group {group.group} cannot be read: its frame has {group.size} bytes")
        frame = self._read(self._uri, group.offset, group.size)
        try:
            if len(frame) != group.size:
                raise SamplesDamaged(f"the object ends {group.size - len(frame)} bytes too early")
            yield from iterate_group(frame, group, self._limits)
        except SamplesDamaged as error:
            raise SamplesDamaged(f"group {group.group} cannot be read: {error}") from error


def open_samples(
    read: ReadRange, uri: S3Uri, step: int, split: SampleSplit, limits: ReadLimits = DEFAULT_LIMITS
) -> OpenSamples:
    """Return the object, with its index but no records. `step` and `split` hold for objects without a usable index.

    Raises what `read` raises.
    """
    tail = read(uri, None, TAIL_BYTES)
    try:
        size = index_size(tail, limits)
        if size > len(tail) == TAIL_BYTES:
            tail = read(uri, None, size)
        return OpenSamples(decode_index(tail, limits), None, uri, read, _limits=limits)
    except SamplesDamaged as error:
        damage = str(error)
    data = tail if len(tail) < TAIL_BYTES else read(uri, 0, limits.scan)
    scanned = scan(data, limits)
    message = f"{uri} is damaged, so some rollouts may be missing: {scanned.problem or damage}"
    return OpenSamples(scanned.index(step, split), message, uri, read, dict(enumerate(scanned.groups)), limits)
