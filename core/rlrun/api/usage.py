"""Usage log: the periods during which ended attempts of runs, and serving pools, held GPUs.

A record is a line of JSON. Each operator writes one file per day, with the periods that ended on that day. Lines are
appended and never changed. The log outlives the runs, their namespaces and the cluster.
"""

import json
from collections.abc import Collection, Iterator
from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field

from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema

MAX_FILE_BYTES = 64 * 1024**2
"""Maximum size of a file that is read: about 200,000 records of one day."""


class UsageKind(StrEnum):
    """Kind of object that GPU time is charged to."""

    run = "Run"
    serving_pool = "ServingPool"


class UsageRecord(Schema):
    """Period during which an attempt of a run, or a serving pool, held GPUs."""

    model_config = ConfigDict(extra="ignore")

    kind: UsageKind = UsageKind.run
    namespace: str = Field(max_length=63)
    name: str = Field(max_length=253)
    """Name of the run, or of the pool's Deployment."""
    uid: str = Field(max_length=64)
    attempt: int = Field(default=1, ge=0)
    model: str = Field(default="", max_length=256)
    user: str = Field(default="", max_length=256)
    """User who created the run. Empty for a pool, or if the user is unknown."""
    gpus: int = Field(default=0, ge=0)
    start_time: datetime
    end_time: datetime

    @property
    def key(self) -> tuple[str, int, datetime]:
        """Identity of the record. Two records with the same key are duplicates."""
        return self.uid, self.attempt, self.start_time

    def seconds(self, since: datetime, until: datetime) -> int:
        """Return how many seconds of the recorded period are between `since` and `until`."""
        return max(0, int((min(self.end_time, until) - max(self.start_time, since)).total_seconds()))


def with_records(data: bytes, records: Collection[UsageRecord]) -> bytes | None:
    """Return the content of a file with the missing records appended, or None if none is missing."""
    known = {record.key for record in read_records(data)}
    added = [record for record in records if record.key not in known]
    if not added:
        return None
    lines = "".join(json.dumps(record.to_json_dict(), separators=(",", ":")) + "\n" for record in added)
    return (data if not data or data.endswith(b"\n") else data + b"\n") + lines.encode()


def read_records(data: bytes) -> Iterator[UsageRecord]:
    """Yield the records of a file. Lines that are not valid records, for example from another version, are skipped."""
    for line in data.splitlines():
        try:
            yield parse(UsageRecord, line)
        except InputInvalid:
            continue
