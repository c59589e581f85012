"""Writer of the usage log. Attempts that end at the same time need only one read and one write of the day's file."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime

from rlrun.api.run_status import RLRunStatus
from rlrun.api.usage import UsageRecord
from rlrun.constants import USER_ANNOTATION
from rlrun.kube.objects import Obj, annotation
from rlrun.storage.layout import S3Uri, usage_day

from rlrun_operator.planning.ending import ended_attempts
from rlrun_operator.storage.artifact_store import ArtifactStore


class UsageLog:
    """Usage log of one operator. Only the process that holds the Lease writes it."""

    def __init__(self, artifacts: ArtifactStore, root: S3Uri, operator: str) -> None:
        """`root` is `s3://bucket/prefix`. `operator` is part of the file names, so that each operator has its own
        files.
        """
        self._artifacts = artifacts
        self._root = root
        self._operator = operator
        self._lock = asyncio.Lock()
        self._waiting: list[tuple[Sequence[UsageRecord], asyncio.Future[None]]] = []

    async def record(self, variables: Mapping[str, str], records: Sequence[UsageRecord]) -> None:
        """Add missing records to the log. Raises StoreError, after which the call can be repeated, or LeaseLost."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((records, done))
        async with self._lock:
            if not done.done():
                await self._write(variables)
        await done

    async def _write(self, variables: Mapping[str, str]) -> None:
        """Write all pending records, including those of other callers."""
        batch, self._waiting = self._waiting, []
        try:
            together = [record for records, _ in batch for record in records]
            files: dict[S3Uri, list[UsageRecord]] = {}
            for record in together:
                files.setdefault(usage_day(self._root, self._operator, record.end_time), []).append(record)
            for uri, group in files.items():
                await self._artifacts.add_usage(variables, str(uri), group)
        except Exception as error:
            for _, done in batch:
                done.set_exception(error)
        except BaseException:
            # This task was cancelled. Other callers write the records themselves.
            self._waiting = [*batch, *self._waiting]
            raise
        else:
            for _, done in batch:
                done.set_result(None)


def usage_records(run: Obj, status: RLRunStatus, now: datetime, *, is_leaving: bool) -> list[UsageRecord]:
    """Return the records of ended attempts that are not in the usage log yet. `is_leaving` means that the run is being
    deleted.
    """
    metadata = run["metadata"]
    return [
        UsageRecord(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            attempt=one.attempt,
            model=str((run.get("spec") or {}).get("model") or "")[:256],
            user=annotation(run, USER_ANNOTATION)[:256],
            gpus=one.gpus,
            start_time=one.start_time,
            end_time=one.end_time,
        )
        for one in (ended_attempts(status, now) if is_leaving else status.ended_attempts)
    ]
