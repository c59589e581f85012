"""Divides a batch among the trainer's processes: each gets the columns of its own micro-batches.

The first process has the whole batch. It packs the samples, and sends every other process the headers and columns of
that process's samples, and the totals of the batch, which the objective and the metrics need. Micro-batch i belongs to
process i modulo the number of processes. All processes make the same number of passes, as sharded weights require.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlrun.protocol.train_batch import Sample, SampleHeader, read_sample, sample_columns

from rlrun_trainer.optimization.packing import Layout
from rlrun_trainer.runtime.messages import MessageFormat
from rlrun_trainer.runtime.process_group import ProcessGroup

Rows = Sequence[Sequence[Sample]]
"""Samples of a micro-batch, by row."""


@dataclass(frozen=True)
class BatchTotals:
    """Sizes of the whole batch."""

    samples: int
    """Number of samples, including those without trainable tokens."""
    packed: int
    """Number of samples in micro-batches."""
    micro_batches: int
    rows: int
    cells: int
    """Number of tokens, including padding."""
    tokens: int
    trainable: int
    policy_tokens: int

    @classmethod
    def of(cls, layouts: Sequence[Layout], samples: int) -> "BatchTotals":
        """Return the totals of a packed batch of `samples`."""
        return cls(
            samples=samples,
            packed=sum(len(layout.samples) for layout in layouts),
            micro_batches=len(layouts),
            rows=sum(len(layout.rows) for layout in layouts),
            cells=sum(len(layout.rows) * layout.width for layout in layouts),
            tokens=sum(layout.tokens for layout in layouts),
            trainable=sum(layout.trainable for layout in layouts),
            policy_tokens=sum(layout.policy_tokens for layout in layouts),
        )


@dataclass(frozen=True)
class BatchShare:
    """Micro-batches of one process."""

    totals: BatchTotals
    micro_batches: Sequence[Rows]
    """At least one micro-batch. A process without micro-batches of its own gets the last one of the batch, for passes
    with weight 0.
    """
    own: int
    """Number of micro-batches that belong to this process. Any other micro-batch has weight 0."""
    passes: int
    """Number of passes that every process makes."""


@dataclass(frozen=True)
class _Message:
    """Share without its columns, as the first process sends it to another one."""

    totals: BatchTotals
    micro_batches: list[list[list[SampleHeader]]]
    own: int
    passes: int


SHARES = MessageFormat(_Message)


def share_batch(world: ProcessGroup, samples: Sequence[Sample], layouts: Sequence[Layout]) -> BatchShare:
    """Return this process's share. All processes must call it. Only the first process uses `samples` and `layouts`."""
    if not world.is_leader:
        return _receive(world)
    totals = BatchTotals.of(layouts, len(samples))
    passes = -(-len(layouts) // world.size)
    for rank in range(1, world.size):
        own = layouts[rank :: world.size]
        sent = own or layouts[-1:]
        headers = [[[SampleHeader.of(samples[index]) for index in row] for row in layout.rows] for layout in sent]
        world.send_message(_Message(totals, headers, len(own), passes), SHARES, rank)
        world.send_columns(_columns(samples, sent), rank)
    own = layouts[0 :: world.size]
    rows = [[[samples[index] for index in row] for row in layout.rows] for layout in own]
    return BatchShare(totals, rows, len(own), passes)


def _columns(samples: Sequence[Sample], layouts: Sequence[Layout]) -> Iterator[memoryview | bytes]:
    for layout in layouts:
        for index in layout.samples:
            yield from sample_columns(samples[index])


def _receive(world: ProcessGroup) -> BatchShare:
    message = world.receive_message(SHARES)
    data = world.receive_columns(sum(h.size for rows in message.micro_batches for row in rows for h in row))
    place = 0

    def read(header: SampleHeader) -> Sample:
        nonlocal place
        place += header.size
        return read_sample(header, data[place - header.size : place])

    rows = [[[read(header) for header in row] for row in each] for each in message.micro_batches]
    return BatchShare(message.totals, rows, message.own, message.passes)
