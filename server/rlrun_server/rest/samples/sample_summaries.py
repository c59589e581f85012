"""Summaries of a run's stored rollouts, reduced to the fields that lists need.

A tenant's process writes the summaries, so invalid lines and impossible names are skipped.
"""

import io
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rlrun.api.base.names import MAX_ENVIRONMENT_ID
from rlrun.api.base.received import InputInvalid, parse
from rlrun.storage.layout import parse_rollouts_name
from rlrun.storage.samples.record import SampleSplit
from rlrun.storage.samples.summary import MAX_GROUPS, QUANTILES, StepSamples

from rlrun_server.rest.metrics.metric_columns import MAX_STEP
from rlrun_server.rest.samples.sample_models import ExamplePoint, SampleObject

MAX_COUNT = 2**53
MAX_ENVIRONMENTS = 200
"""Maximum number of environments of a run that are listed."""
ENVIRONMENT = re.compile(rf"[A-Za-z0-9][A-Za-z0-9 ._-]{{0,{MAX_ENVIRONMENT_ID - 1}}}")
ENTRY_BYTES = 600
"""Approximate memory for a summary without its text and groups, in bytes."""
COLUMN_BYTES = 400
"""Memory for the groups of an environment without their numbers, in bytes."""

ObjectKey = tuple[int, str, str]
"""Step, split and environment."""
Groups = dict[str, tuple["array[int]", "array[float]"]]
"""Examples and mean rewards by environment."""


@dataclass(frozen=True)
class KeptSummary:
    """Summary of one stored object."""

    step: int
    split: SampleSplit
    environment: str | None
    file: str
    text: bytes
    """Summary as JSON, as it appears in lists."""
    groups: Groups
    has_more_groups: bool = False

    @property
    def key(self) -> ObjectKey:
        """Sort key, equal for two versions of one object."""
        return self.step, self.split, self.environment or ""

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        numbers = sum(COLUMN_BYTES + 16 * len(examples) for examples, _ in self.groups.values())
        return ENTRY_BYTES + len(self.text) + numbers


@dataclass(frozen=True)
class RunSamples:
    """All summaries of a run, ordered by step, split and environment."""

    summaries: Sequence[KeptSummary]
    is_complete: bool = True
    is_stale: bool = False

    @cached_property
    def splits(self) -> list[SampleSplit]:
        """Splits with rollouts."""
        splits = {summary.split for summary in self.summaries}
        return [split for split in SampleSplit if split in splits]

    @cached_property
    def environments(self) -> list[str]:
        """Environments with rollouts, at most MAX_ENVIRONMENTS."""
        measured = {summary.environment for summary in self.summaries if summary.environment is not None}
        return sorted(measured.union(*(summary.groups for summary in self.summaries)))[:MAX_ENVIRONMENTS]


def parse_part(data: bytes) -> list[KeptSummary]:
    """Return the summaries in a file, last line first, so that `merge_summaries` keeps the last one of each object."""
    summaries = [summary for line in io.BytesIO(data) if (summary := _parse_line(line)) is not None]
    return summaries[::-1]


def merge_summaries(newest_first: Iterable[KeptSummary], listed: Mapping[str, int], *, is_complete: bool) -> RunSamples:
    """Return the newest summary of each object. An object without a summary is described by the parts of its name.

    `listed` maps the names of objects to their sizes in bytes.
    """
    newest: dict[ObjectKey, KeptSummary] = {}
    for summary in newest_first:
        newest.setdefault(summary.key, summary)
    files = {summary.file for summary in newest.values()}
    for name, size in listed.items():
        if name not in files and (bare := without_summary(name, size)) is not None:
            newest.setdefault(bare.key, bare)
    return RunSamples([newest[key] for key in sorted(newest)], is_complete)


def without_summary(file: str, size: int) -> KeptSummary | None:
    """Describe an object that has no summary by the parts of its name. Returns None if the name is invalid."""
    parsed = parse_rollouts_name(file)
    if parsed is None or parsed[0] > MAX_STEP:
        return None
    step, use = parsed
    name, _, environment = use.partition("-")
    split = SampleSplit(name or SampleSplit.train)
    item = SampleObject(step=step, split=split, environment=environment or None, size_bytes=size)
    return KeptSummary(step, split, environment or None, file, _text_of(item), {})


def split_of(file: str) -> SampleSplit | None:
    """Return the split of an object with this name, or None if the name is invalid."""
    parsed = parse_rollouts_name(file)
    return None if parsed is None else SampleSplit(parsed[1].partition("-")[0] or SampleSplit.train)


def points_of(
    run: RunSamples, environment: str, example: int, split: SampleSplit | None
) -> tuple[list[ExamplePoint], bool]:
    """Return the mean rewards of an example's groups, ordered by step, and whether the list is complete."""
    points: list[ExamplePoint] = []
    is_complete = run.is_complete
    for summary in run.summaries:
        if split not in (None, summary.split):
            continue
        is_complete = is_complete and not summary.has_more_groups
        examples, means = summary.groups.get(environment, ((), ()))
        points += [
            ExamplePoint(step=summary.step, split=summary.split, mean=mean)
            for found, mean in zip(examples, means, strict=True)
            if found == example
        ]
    return points, is_complete


def _parse_line(line: bytes) -> KeptSummary | None:
    try:
        summary = parse(StepSamples, line)
    except InputInvalid:
        return None
    counts = [*summary.counts.values(), summary.size, summary.omitted]
    names = {name for name, _, _ in summary.groups} | (
        {summary.environment} if summary.environment is not None else set()
    )
    # The name of an environment is a part of the object's name, with spaces replaced.
    is_valid = (
        0 <= summary.step <= MAX_STEP
        and all(0 <= count <= MAX_COUNT for count in counts)
        and all(ENVIRONMENT.fullmatch(name) for name in names)
        and all(abs(example) <= MAX_COUNT for _, example, _ in summary.groups)
        and len(summary.groups) <= MAX_GROUPS
        and (summary.reward is None or len(summary.reward.quantiles) == len(QUANTILES))
        and (parsed := parse_rollouts_name(summary.file)) is not None
        and parsed[0] == summary.step
        and (parsed[1].partition("-")[0] or SampleSplit.train) == summary.split
        and ("-" in parsed[1]) == (summary.environment is not None)
    )
    return _to_kept_summary(summary) if is_valid else None


def _to_kept_summary(summary: StepSamples) -> KeptSummary:
    item = SampleObject(
        step=summary.step,
        split=summary.split,
        environment=summary.environment,
        counts=summary.counts,
        reward=summary.reward,
        size_bytes=summary.size,
        omitted=summary.omitted,
    )
    groups: Groups = {}
    for environment, example, mean in summary.groups:
        examples, means = groups.setdefault(environment, (array("q"), array("d")))
        examples.append(example)
        means.append(mean)
    has_more = len(summary.groups) == MAX_GROUPS
    return KeptSummary(summary.step, summary.split, summary.environment, summary.file, _text_of(item), groups, has_more)


def _text_of(item: SampleObject) -> bytes:
    return item.model_dump_json(by_alias=True, exclude_none=True).encode()
