"""Reader of stored rollouts: one request reads the index of an object, and another reads the records of a group.

The read function is a parameter, so that programs can use their own client. Reading a damaged group raises
SamplesDamaged, but the other groups remain readable. An object whose index is damaged or missing is read completely, up
to its first damaged frame.
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
"""Number of bytes that the first request reads. The index of 512 rollouts takes about 40 KB."""

ReadRange = Callable[[S3Uri, int | None, int], bytes]
"""Function (uri, start, length) that reads up to `length` bytes of an object from byte `start`, or its last bytes if
`start` is None. `Store.get_range` is such a function.
"""


@dataclass(frozen=True)
class OpenSamples:
    """Opened object with rollouts."""

    index: SampleIndex
    problem: str | None
    """Message for the user about damage to the object, or None."""
    _uri: S3Uri
    _read: ReadRange
    _scanned: dict[int, ScannedGroup] = field(default_factory=dict)
    """Groups by number, for an object that was read completely."""
    _limits: ReadLimits = DEFAULT_LIMITS

    @property
    def scanned_bytes(self) -> int:
        """Size in bytes of the records that are in memory because the whole object was read."""
        return sum(len(line) for group in self._scanned.values() for line in group.lines)

    def has_texts(self, group: SampleGroup) -> bool:
        """Return whether records of the group are stored."""
        return group.size > 0 or bool(self._scanned)

    def records(self, group: SampleGroup) -> list[SampleRecord]:
        """Return the records of a group. Raises SamplesDamaged, and propagates exceptions of the read function."""
        return list(self.iterate(group))

    def iterate(self, group: SampleGroup) -> Iterator[SampleRecord]:
        """Yield the records of a group, one by one. Raises the same exceptions as `records`."""
        number = next((n for n, known in enumerate(self.index.groups) if known is group), None)
        if number in self._scanned:
            yield from self._scanned[number].records(self._limits)
            return
        if group.size == 0:
            raise SamplesDamaged(
                f"the texts of group {group.group} are not stored, because the step's rollouts exceed the limit of "
                f"{MAX_OBJECT_BYTES} bytes"
            )
        if group.size > (largest := min(MAX_OBJECT_BYTES, self._limits.scan)):
            raise SamplesDamaged(f"group {group.group} is too large to be read: {group.size} bytes, limit {largest}")
        frame = self._read(self._uri, group.offset, group.size)
        try:
            if len(frame) != group.size:
                raise SamplesDamaged(f"the object is {group.size - len(frame)} bytes too short")
            yield from iterate_group(frame, group, self._limits)
        except SamplesDamaged as error:
            raise SamplesDamaged(f"group {group.group} cannot be read: {error}") from error


def open_samples(
    read: ReadRange, uri: S3Uri, step: int, split: SampleSplit, limits: ReadLimits = DEFAULT_LIMITS
) -> OpenSamples:
    """Open an object and read its index, but no records.

    `step` and `split` are used for objects without a usable index. Propagates exceptions of `read`.
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
