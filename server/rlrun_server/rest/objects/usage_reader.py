"""Reader of the usage log in S3. It caches files, so that an unchanged file is read only once."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from rlrun.api.usage import MAX_FILE_BYTES, UsageRecord, read_records
from rlrun.storage.layout import S3Uri, usage_month
from rlrun.storage.store import Store

from rlrun_server.rest.base.bounded_cache import BoundedCache
from rlrun_server.rest.base.stored_files import StoredFiles

KEPT_BYTES = 16 * 1024**2
"""Maximum size of cached files, in bytes. Their records take about four times as much memory."""
READ_BYTES = 64 * 1024**2
"""Maximum size of the files that one request reads, in bytes."""

FileKey = tuple[str, int, datetime]
"""Key, size and modification time of a file."""


class UsageReader:
    """Reads and caches the files of the usage log."""

    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._kept: BoundedCache[FileKey, tuple[UsageRecord, ...]] = BoundedCache(KEPT_BYTES)

    async def read(
        self, caller: str, since: datetime, now: datetime, includes: Callable[[UsageRecord], bool]
    ) -> tuple[list[UsageRecord], bool]:
        """Return the selected records that ended after `since`, and whether all files could be read.

        `caller` is the tenant whose concurrent reads are limited. Raises RestError.
        """
        return await self._files.run(caller, "usage records", self._read, since, now, includes)

    def close(self) -> None:
        """Stop the threads."""
        self._files.close()

    def _read(
        self, since: datetime, now: datetime, includes: Callable[[UsageRecord], bool]
    ) -> tuple[list[UsageRecord], bool]:
        store, found, left = self._files.store, dict[tuple[str, int, datetime], UsageRecord](), READ_BYTES
        for folder in month_folders(self._files.root, since, now):
            for stored in store.walk(folder):
                if not _is_needed(stored.key, since):
                    continue
                left -= stored.size
                if left < 0 or stored.size > MAX_FILE_BYTES:
                    return list(found.values()), False
                key = (stored.key, stored.size, stored.modified)
                records = self._kept.get(key)
                if records is None:
                    records = self._parse(store, S3Uri(folder.bucket, stored.key), stored.size)
                    self._kept.put(key, records, stored.size)
                found.update((one.key, one) for one in records if one.end_time > since and includes(one))
        return list(found.values()), True

    @staticmethod
    def _parse(store: Store, uri: S3Uri, size: int) -> tuple[UsageRecord, ...]:
        return tuple(read_records(store.get_range(uri, 0, size))) if size else ()


def month_folders(root: S3Uri, since: datetime, now: datetime) -> Iterator[S3Uri]:
    """Yield the folders of the months from `since` to `now`. An attempt is stored in the folder of the month in which
    it ended.
    """
    month = since.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while month <= now:
        yield usage_month(root, month)
        month = (month + timedelta(days=31)).replace(day=1)


def _is_needed(key: str, since: datetime) -> bool:
    """Return whether the file may have records that ended at `since` or later. Returns False for the file of an earlier
    day.
    """
    month, name = key.split("/")[-2:]
    return f"{month}-{name[:2]}" >= f"{since.astimezone(UTC):%Y-%m-%d}"
