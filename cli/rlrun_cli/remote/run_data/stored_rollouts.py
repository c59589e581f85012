"""Reads a run's rollouts from S3 for the command `rollouts`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlrun.storage.layout import RunLayout, file_name, parse_rollouts_name
from rlrun.storage.samples.index import SampleGroup, SampleRow
from rlrun.storage.samples.object_file import SamplesDamaged
from rlrun.storage.samples.reader import OpenSamples, open_samples
from rlrun.storage.samples.record import SampleRecord, SampleSplit
from rlrun.storage.samples.selection import SampleFilter
from rlrun.storage.store import NotFound, Store

from rlrun_cli.terminal.errors import CliError


@dataclass(frozen=True)
class ListedRollout:
    """Rollout in a list, with the S3 object that contains its texts."""

    samples: OpenSamples
    group: SampleGroup
    row: SampleRow


def open_step(
    store: Store, layout: RunLayout, step: int | None, split: SampleSplit, environment: str | None
) -> list[OpenSamples]:
    """Return the S3 objects with the rollouts of a step and split. If `step` is None, the newest step is used.

    Raises CliError if the object does not exist, and StoreError if it cannot be read.
    """
    use = _use(split, environment)
    if step is not None and use is not None:
        try:
            return [open_samples(store.get_range, layout.rollouts(step, use), step, split)]
        except NotFound:
            pass  # The list of all objects shows which steps exist.
    uses_by_step = _uses_by_step(store, layout, split, use)
    wanted = max(uses_by_step, default=None) if step is None else step
    if wanted is None or wanted not in uses_by_step:
        raise _missing(layout, sorted(uses_by_step), wanted, split)
    uses = uses_by_step[wanted]
    return [open_samples(store.get_range, layout.rollouts(wanted, use), wanted, split) for use in uses]


def list_rollouts(opened: Iterable[OpenSamples], wanted: SampleFilter) -> list[ListedRollout]:
    """Return the rollouts that match the filter. The filter's group may be a prefix of a group id.

    Raises CliError if the prefix matches no group or several groups.
    """
    rollouts = [ListedRollout(samples, group, row) for samples in opened for group, row in samples.index.pairs()]
    if wanted.group is not None:
        wanted = replace(wanted, group=_group_id(rollouts, wanted.group))
    return [rollout for rollout in rollouts if wanted.accepts(rollout.group, rollout.row)]


def records_of(rollouts: Sequence[ListedRollout]) -> Iterator[SampleRecord | SamplesDamaged]:
    """Yield the record of each rollout, or one error for each group that cannot be read. Raises StoreError."""
    known: dict[int, Mapping[int, SampleRecord]] = {}
    for rollout in rollouts:
        key = id(rollout.group)
        if key not in known:
            try:
                records = rollout.samples.records(rollout.group)
                # Match by position, because an environment may report two rollouts with the same id.
                known[key] = {id(row): record for row, record in zip(rollout.group.rows, records, strict=True)}
            except SamplesDamaged as error:
                known[key] = {}
                yield error
        if id(rollout.row) in known[key]:
            yield known[key][id(rollout.row)]


def _use(split: SampleSplit, environment: str | None) -> str | None:
    """Return the part of the object's name that stands for the split. None means one object per environment."""
    if split is SampleSplit.train:
        return ""
    if split is SampleSplit.filtered:
        return str(split)
    return f"{split}-{file_name(environment)}" if environment else None


def _uses_by_step(store: Store, layout: RunLayout, split: SampleSplit, use: str | None) -> dict[int, list[str]]:
    uses: dict[int, list[str]] = {}
    for name, _ in store.list_files(layout.root / "rollouts"):
        parsed = parse_rollouts_name(name)
        if parsed is None:
            continue
        step, its_use = parsed
        if its_use == use or (use is None and its_use.startswith(f"{split}-")):
            uses.setdefault(step, []).append(its_use)
    return uses


def _missing(layout: RunLayout, steps: Sequence[int], step: int | None, split: SampleSplit) -> CliError:
    kind = "rollouts" if split is SampleSplit.train else f"rollouts of the split {split}"
    if not steps:
        return CliError(f"{layout.root} has no {kind} yet", "try again after the first step")
    available = f"select a step with -s; steps with {kind}: {len(steps)}, from {steps[0]} to {steps[-1]}"
    return CliError(f"{layout.root} has no {kind} for step {step}", available)


def _group_id(rollouts: Iterable[ListedRollout], beginning: str) -> str:
    ids = sorted({rollout.group.group for rollout in rollouts if rollout.group.group.startswith(beginning)})
    if beginning in ids or len(ids) == 1:
        return beginning if beginning in ids else ids[0]
    if ids:
        raise CliError(f"{len(ids)} group ids begin with {beginning!r}", "enter more characters of the id")
    raise CliError(
        f"no group of this step begins with {beginning!r}",
        "list the groups without --group; -s selects the step, and --split the split",
    )
