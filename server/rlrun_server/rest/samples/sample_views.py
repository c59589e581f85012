"""Lists, groups and distributions of the rollouts of a step. Texts are read from S3 when needed."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import fsum
from statistics import fmean

from rlrun.storage.errors import NotFound
from rlrun.storage.samples.bounds import bounded_line
from rlrun.storage.samples.index import SampleGroup, SampleRow
from rlrun.storage.samples.object_file import SamplesDamaged
from rlrun.storage.samples.reader import OpenSamples
from rlrun.storage.samples.record import SampleStatus
from rlrun.storage.samples.selection import SampleFilter

from rlrun_server.rest.base.problems import not_found
from rlrun_server.rest.samples.sample_models import RewardBin, SampleGroupInfo, SampleItem
from rlrun_server.rest.samples.sample_reader import OpenedStep, cut

PATH_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Pattern of ids that can be used as one segment of a URL path."""
DIGEST_BYTES = 8
MAX_FUNCTIONS = 64
"""Maximum number of reward functions of a rollout that are returned. A run stores at most the same number."""
MAX_NAME = 128
RECORDS_BYTES = 4 * 1024**2
"""Maximum size of the records of a group in one response, in bytes: 16 of the largest records."""


@dataclass(frozen=True)
class ListedGroup:
    """Group, and the opened object that contains its texts."""

    address: str
    entry: SampleGroup
    samples: OpenSamples
    mean: float | None

    def info(self) -> SampleGroupInfo:
        """Return the group in the API's format."""
        entry = self.entry
        return SampleGroupInfo(
            group=self.address,
            environment=entry.environment,
            example=entry.example,
            ordinal=entry.ordinal,
            policy_version=entry.policy_version,
            staleness=entry.staleness,
            rollouts=len(entry.rows),
            mean=self.mean,
            has_texts=self.samples.has_texts(entry),
        )


@dataclass(frozen=True)
class ListedSample:
    """Rollout with its group."""

    address: str
    number: int
    """Position in the step."""
    group: ListedGroup
    row: SampleRow

    def item(self) -> SampleItem:
        """Return the rollout in the API's format."""
        row = self.row
        names = [name for name in row.rewards if len(name) <= MAX_NAME][:MAX_FUNCTIONS]
        return SampleItem(
            rollout=self.address,
            group=self.group.address,
            agent=row.agent,
            status=row.status,
            cause=row.cause,
            reward=row.reward,
            advantage=row.advantage,
            rewards={name: row.rewards[name] for name in names},
            prompt_tokens=row.prompt_tokens,
            completion_tokens=row.completion_tokens,
            turns=row.turns,
            is_truncated=row.is_truncated,
            stop_condition=row.stop_condition,
            text=row.text,
        )


def listed_samples(step: OpenedStep) -> list[ListedSample]:
    """Return all rollouts of a step, with ids that are valid in paths."""
    groups = [(file, samples, n, g) for file, samples in step.objects for n, g in enumerate(samples.index.groups)]
    of_groups = addresses([(group.group, f"{file}:{number}") for file, _, number, group in groups])
    of_rows = iter(
        addresses(
            [
                (row.rollout, f"{file}:{number}:{place}")
                for file, _, number, group in groups
                for place, row in enumerate(group.rows)
            ]
        )
    )
    rows: list[ListedSample] = []
    for address, (_, samples, _, entry) in zip(of_groups, groups, strict=True):
        group = ListedGroup(address, entry, samples, mean_of(entry.rewards))
        rows += [ListedSample(next(of_rows), len(rows) + n, group, row) for n, row in enumerate(entry.rows)]
    return rows


def addresses(ids: Sequence[tuple[str, str]]) -> list[str]:
    """Return a unique id that is valid in a path for each pair of id and position: the id itself, or `~` and a digest
    of the position.

    The environment chooses the ids, so they may repeat or contain any character.
    """
    counts = Counter(own for own, _ in ids)
    return [own if counts[own] == 1 and PATH_SEGMENT.fullmatch(own) else _digest(place) for own, place in ids]


def _digest(place: str) -> str:
    return f"~{blake2b(place.encode(), digest_size=DIGEST_BYTES).hexdigest()}"


def select_samples(
    samples: Sequence[ListedSample], wanted: SampleFilter, group: str | None, example: int | None, text: str
) -> list[ListedSample]:
    """Return the rollouts that satisfy all conditions, in their order. The case of `text` is ignored."""
    text = text.casefold()
    return [
        sample
        for sample in samples
        if wanted.accepts(sample.group.entry, sample.row)
        and group in (None, sample.group.address)
        and example in (None, sample.group.entry.example)
        and (not text or _has_text(sample, text))
    ]


def _has_text(sample: ListedSample, text: str) -> bool:
    row = sample.row
    places = (row.text, row.rollout, sample.group.entry.group, row.cause or "", row.stop_condition or "")
    return any(text in place.casefold() for place in places)


def of_group(samples: Sequence[ListedSample], address: str, what: str) -> list[ListedSample]:
    """Return the rollouts of a group. Raises RestError if there is no such group. `what` names the step in the error
    message.
    """
    members = [sample for sample in samples if sample.group.address == address]
    if not members:
        raise not_found(f"Group {address} of {what}")
    return members


def one(samples: Sequence[ListedSample], address: str, what: str) -> ListedSample:
    """Return a rollout. Raises RestError if there is no such rollout. `what` names the step in the error message."""
    for sample in samples:
        if sample.address == address:
            return sample
    raise not_found(f"Rollout {address} of {what}")


def records_of(step: OpenedStep, group: Sequence[ListedSample]) -> tuple[list[bytes], str | None]:
    """Return the records of a group as JSON, and the reason why some are missing."""
    lines: list[bytes] = []
    left = RECORDS_BYTES
    try:
        for line in _lines(group[0].group):
            left -= len(line)
            if left < 0:
                return lines, (
                    f"This response has the texts of {len(lines)} of {len(group)} rollouts, because the other texts "
                    f"are too long. Read the remaining rollouts one by one."
                )
            lines.append(line)
    except (SamplesDamaged, NotFound) as error:
        step.problems.append(cut(str(error)))
        return [], cut(f"The texts of this group cannot be read: {error}")
    return lines, None


def record_of(step: OpenedStep, sample: ListedSample) -> tuple[bytes | None, str | None]:
    """Return the record of a rollout as JSON, or the reason why there is none."""
    place = next(n for n, row in enumerate(sample.group.entry.rows) if row is sample.row)
    try:
        for number, line in enumerate(_lines(sample.group)):
            if number == place:
                return line, None
        raise SamplesDamaged("the group has fewer records than its index lists")
    except (SamplesDamaged, NotFound) as error:
        step.problems.append(cut(str(error)))
        return None, cut(f"The texts of this rollout cannot be read: {error}")


def _lines(group: ListedGroup) -> Iterator[bytes]:
    """Yield the records as JSON. Only one record at a time is decoded, because a decoded record may need twenty times
    the memory of its text.
    """
    for record in group.samples.iterate(group.entry):
        try:
            yield bounded_line(record).rstrip(b"\n")
        except (ValueError, RecursionError) as error:
            raise SamplesDamaged("a record is nested too deeply, or has values that JSON cannot represent") from error


def rewards_of(step: OpenedStep, environment: str | None) -> list[float]:
    """Return the rewards of a step's rollouts that did not fail, of one environment or of all."""
    return [
        sample.row.reward
        for sample in listed_samples(step)
        if environment in (None, sample.group.entry.environment)
        and sample.row.reward is not None
        and sample.row.status is not SampleStatus.errored
    ]


def histogram(rewards: Sequence[float], count: int) -> list[RewardBin]:
    """Return at most `count` bins of equal width from the minimum to the maximum reward."""
    if not rewards:
        return []
    low, high = min(rewards), max(rewards)
    if low == high:
        return [RewardBin(min=low, max=high, count=len(rewards))]
    # Not computed from `high - low`, which may be infinite. Edges coincide if the range has fewer numbers than bins.
    edges = sorted({low * (1 - n / count) + high * (n / count) for n in range(1, count)} - {low, high})
    edges = [low, *(edge for edge in edges if low < edge < high), high]
    counts = Counter(min(bisect_right(edges, reward), len(edges) - 1) - 1 for reward in rewards)
    return [RewardBin(min=edges[n], max=edges[n + 1], count=counts[n]) for n in range(len(edges) - 1)]


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean, computed without overflow of the sum, or None if there are no values."""
    if not values:
        return None
    try:
        return fmean(values)
    except OverflowError:
        return fsum(value / len(values) for value in values)


def function_names(samples: Sequence[ListedSample]) -> list[str]:
    """Return the names of reward functions in the order of their first occurrence, at most MAX_FUNCTIONS."""
    names: dict[str, None] = {}
    for sample in samples:
        for name in sample.row.rewards:
            if len(name) <= MAX_NAME and len(names) < MAX_FUNCTIONS:
                names[name] = None
    return list(names)
