"""Reader of runs' stored rollouts in S3. It makes few requests, limits all sizes, and runs in threads."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rlrun.constants import Reason
from rlrun.storage.errors import NotFound
from rlrun.storage.layout import S3Uri, rollouts_name
from rlrun.storage.samples.object_file import ReadLimits, SamplesDamaged
from rlrun.storage.samples.reader import OpenSamples, open_samples
from rlrun.storage.samples.record import SampleSplit

from rlrun_server.rest.base.bounded_cache import BoundedCache
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.base.stored_files import PlatformStorage, StoredFiles
from rlrun_server.rest.samples.sample_summaries import RunSamples, split_of
from rlrun_server.rest.samples.summary_reader import (
    DecodingTurn,
    File,
    Run,
    SummaryReader,
    files_below,
    rollouts_folder,
)

THREADS = 6
AT_ONCE = 2
"""Maximum number of concurrent reads of a caller."""
MAX_WAITING = 10
"""Maximum number of waiting reads of a caller. Opening a web page starts several at a time."""
FRESH_SECONDS = 2.0
"""Seconds for which a list of a step's objects is cached."""
LIMITS = ReadLimits(
    packed_index=1024**2,
    index=3 * 1024**2,
    rows=16_384,
    group=16 * 1024**2,
    record=512 * 1024,
    scan=8 * 1024**2,
)
"""Limits for reading an object. Decoding the largest index needs 150 MB, so only one index is decoded at a time."""
TAIL_BYTES = 32 * 1024**2
"""Memory for cached ends of objects of all runs, in bytes. An object with 512 rollouts needs 96 KiB."""
MAX_TAIL = 4 * 1024**2
LISTED_BYTES = 2 * 1024**2
"""Memory for cached lists of the objects of each step, in bytes."""
FILE_BYTES = 400
MAX_OBJECTS = 64
"""Maximum number of objects of one step that are read."""
MAX_PROBLEM = 500

T = TypeVar("T")


@dataclass
class OpenedStep:
    """Opened objects with the rollouts of one step and split."""

    run: Run
    step: int
    split: SampleSplit
    objects: list[tuple[str, OpenSamples]] = field(default_factory=list)
    """Names of files, and their opened content."""
    problems: list[str] = field(default_factory=list)
    """Messages for the user about errors in the stored data."""

    @property
    def address(self) -> dict[str, Any]:
        """Fields of `StepAnswer`."""
        namespace, uid = self.run
        return {"namespace": namespace, "uid": uid, "step": self.step, "split": self.split}


class SampleReader:
    """Reader of stored rollouts. Lists of files are at most FRESH_SECONDS old."""

    def __init__(self, storage: PlatformStorage, clock: Callable[[], float]) -> None:
        self._files = StoredFiles(storage, "samples", THREADS, waiting=MAX_WAITING, at_once=AT_ONCE)
        self._store = storage.store
        self._root = storage.root
        self._clock = clock
        self._decoding = DecodingTurn()
        self._summaries = SummaryReader(storage, clock, self._decoding)
        self._steps: BoundedCache[tuple[Run, int], tuple[float, list[File]]] = BoundedCache(LISTED_BYTES)
        self._tails: BoundedCache[tuple[Run, File], bytes] = BoundedCache(TAIL_BYTES)

    async def summaries(self, caller: str, run: Run, work: Callable[[RunSamples], T]) -> T:
        """Run `work` with the summaries of a run and return its result. Raises RestError, and exceptions of `work`."""

        def call() -> T:
            with self._decoding:
                return work(self._summaries.read(run))

        return await self._files.run(caller, f"rollouts of {'/'.join(run)}", call)

    async def step(self, caller: str, run: Run, step: int, split: SampleSplit, work: Callable[[OpenedStep], T]) -> T:
        """Run `work` with the rollouts of a step and return its result. Raises RestError, and exceptions of `work`."""

        def call() -> T:
            with self._decoding:
                return self._with_step(run, step, split, work)

        return await self._files.run(caller, f"rollouts of {'/'.join(run)}", call)

    def close(self) -> None:
        """Stop the threads without waiting for S3."""
        self._files.close()
        self._summaries.close()

    # --- one step ---------------------------------------------------------------------------------------------------

    def _with_step(self, run: Run, step: int, split: SampleSplit, work: Callable[[OpenedStep], T]) -> T:
        files = self._files_of(run, step, may_be_known=True)
        opened = self._open_files(run, step, split, files)
        result = work(opened)
        if opened.problems:
            # A step that is repeated after a restart replaces its object, possibly between two reads of this object.
            fresh = self._files_of(run, step, may_be_known=False)
            if fresh != files:
                result = work(self._open_files(run, step, split, fresh))
        return result

    def _open_files(self, run: Run, step: int, split: SampleSplit, files: list[File]) -> OpenedStep:
        opened_step = OpenedStep(run, step, split)
        chosen = [file for file in files if split_of(file[0]) is split]
        if not chosen:
            detail = (
                f"Step {step} has no stored rollouts of split {split}. The run's list of steps shows which steps have "
                "stored rollouts."
            )
            raise RestError(404, Reason.OBJECT_NOT_FOUND, detail)
        if len(chosen) > MAX_OBJECTS:
            opened_step.problems.append(f"The step has {len(chosen)} files; only the first {MAX_OBJECTS} are read.")
        left = LIMITS.rows
        for file in chosen[:MAX_OBJECTS]:
            if left <= 0:
                opened_step.problems.append(
                    f"{file[0]} and the following files are not read, because the previous files already "
                    f"contain too many rollouts."
                )
                break
            try:
                limits = replace(LIMITS, rows=left)
                opened = open_samples(self._read_of(run, file), self._uri(run, file[0]), step, split, limits)
            except NotFound:
                opened_step.problems.append(f"{file[0]} was deleted while it was being read.")
                continue
            if opened.problem is not None:
                opened_step.problems.append(cut(f"{file[0]} is damaged or too large: {opened.problem}"))
            left -= _weight(opened)
            opened_step.objects.append((file[0], opened))
        return opened_step

    def _files_of(self, run: Run, step: int, *, may_be_known: bool) -> list[File]:
        known = self._steps.get((run, step))
        if may_be_known and known is not None and self._clock() < known[0] + FRESH_SECONDS:
            return known[1]
        began = self._clock()
        # End the prefix with the period that follows the step in the names of its objects.
        prefix = self._uri(run, rollouts_name(step).removesuffix("jsonl.zst"))
        listed = self._decoding.without(
            lambda: list(itertools.islice(self._store.walk_prefix(prefix), 8 * MAX_OBJECTS))
        )
        files = [
            file for file in files_below(rollouts_folder(self._root, run), listed) if split_of(file[0]) is not None
        ]
        self._steps.put((run, step), (began, files), FILE_BYTES * (1 + len(files)))
        return files

    def _read_of(self, run: Run, file: File) -> Callable[[S3Uri, int | None, int], bytes]:
        """Return a function that reads a range of the object, from memory if the object's cached end contains it."""
        size = file[1]

        def read(uri: S3Uri, start: int | None, length: int) -> bytes:
            tail = self._tails.get((run, file)) or b""
            first = size - len(tail)
            if tail and start is None and (length <= len(tail) or not first):
                return tail[-length:]
            if tail and start is not None and first <= start < size:
                return tail[start - first : start - first + length]
            data = self._decoding.without(lambda: self._store.get_range(uri, start, length))
            # If the object was replaced after it was listed, this is not its end, but the next list has a new `file`.
            if len(data) <= MAX_TAIL and (start is None or (start == 0 and len(data) == size)):
                self._tails.put((run, file), data, len(data) + FILE_BYTES)
            return data

        return read

    def _uri(self, run: Run, name: str) -> S3Uri:
        return rollouts_folder(self._root, run) / name


def _weight(opened: OpenSamples) -> int:
    """Return the memory that an opened object needs, as a number of rows."""
    rows = [row for _, row in opened.index.pairs()]
    return (
        len(opened.index.groups) + len(rows) + sum(len(row.rewards) for row in rows) // 8 + opened.scanned_bytes // 1024
    )


def cut(problem: str | SamplesDamaged) -> str:
    """Return the problem as text of at most MAX_PROBLEM characters, because it may quote text of a tenant."""
    text = str(problem)
    return text if len(text) <= MAX_PROBLEM else f"{text[:MAX_PROBLEM]}…"
