"""Packs samples into micro-batches.

A micro-batch is a matrix of token ids, rows x width. Each row contains one or more samples in sequence. Positions
restart at 0 with every sample, and attention separates samples at these restarts: transformers derives the
block-diagonal causal mask, or the variable lengths of flash attention, from them. Attention with a mask costs width
squared, so rows are as wide as the longest sample; flash attention needs a single long row. A model with layers that
ignore positions gets one sample per row (`row_layout`).

`pack` only decides which samples form a micro-batch, from their lengths. `MicroBatch.of` builds a micro-batch when it
is used, so that only one micro-batch has tensors at a time, and a process needs only the columns of its own samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from rlrun.protocol.train_batch import Sample, SampleLoss

from rlrun_trainer.optimization.sampling_distribution import PLAIN, History, HistoryBuilder, SamplingDistribution


@dataclass
class MicroBatch:
    """Input of one forward pass. N is the number of trainable tokens, S the number of samples.

    Tokens trained with the policy gradient come before tokens trained with cross-entropy.
    """

    input_ids: torch.Tensor
    """[rows, width] int64"""
    position_ids: torch.Tensor
    """[rows, width] int64. Positions restart at 0 with every sample, and with the padding after the last sample."""
    predicting: torch.Tensor
    """[N] int64: flat index (row * width + column) of the position that predicts the trainable token."""
    targets: torch.Tensor
    """[N] int64: trainable tokens."""
    engine_logprobs: torch.Tensor
    """[N] float32"""
    advantages: torch.Tensor
    """[N] float32"""
    teacher_logprobs: torch.Tensor | None
    """[N] float32: the teacher's log-probabilities, NaN for tokens without a teacher. None if no token has one."""
    versions: torch.Tensor
    """[N] int64: policy version that sampled the token."""
    sample_of: torch.Tensor
    """[N] int64 in [0, S): index of the token's sample."""
    policy_tokens: int
    """Number of tokens trained with the policy gradient."""
    samples: int
    tokens: int
    """Number of tokens, excluding padding."""
    distribution: SamplingDistribution = PLAIN
    """Distribution from which the policy's tokens were sampled. Cross-entropy uses the model's unmodified
    probabilities.
    """
    history: History | None = None
    """History of the N tokens, or None if the distribution does not depend on it."""

    @classmethod
    def of(cls, rows: Sequence[Sequence[Sample]], distribution: SamplingDistribution = PLAIN) -> "MicroBatch":
        """Return the micro-batch with these samples in its rows. All samples must have the same sampling parameters.
        `distribution` applies to samples without sampling parameters.
        """
        own = distribution.with_overrides(rows[0][0].sampling)
        return _rectangle([[_arrays(sample) for sample in row] for row in rows], own)

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy on the device."""
        tensors = {k: v for k, v in vars(self).items() if isinstance(v, torch.Tensor | History)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in tensors.items()}
        return replace(self, **moved)


@dataclass(frozen=True)
class _Arrays:
    token_ids: np.ndarray
    columns: np.ndarray
    """Positions of trainable tokens in the sample."""
    logprobs: np.ndarray
    advantages: np.ndarray
    teacher: np.ndarray
    versions: np.ndarray
    """Policy versions of the trainable tokens."""
    policy: bool
    turn_starts: np.ndarray


@dataclass(frozen=True)
class Layout:
    """Places of samples in a micro-batch, and its size."""

    rows: list[list[int]]
    """Indexes of the samples in each row."""
    width: int
    """Width of the rows in tokens."""
    tokens: int
    """Number of tokens, excluding padding."""
    trainable: int
    """Number of trainable tokens."""
    policy_tokens: int
    """Number of tokens trained with the policy gradient."""

    @property
    def samples(self) -> list[int]:
        """Indexes of all samples, row by row."""
        return [index for row in self.rows for index in row]


@dataclass(frozen=True)
class _Item:
    """Properties of a sample that `pack` uses."""

    index: int
    length: int
    trainable: int
    policy: bool


def pack(
    samples: Sequence[Sample], budget: int, single_row: bool = False, at_least: int = 1, share_rows: bool = True
) -> list[Layout]:
    """Return the layouts of micro-batches of at most `budget` tokens (rows * width). Only a sample that is longer than
    the budget exceeds it, in a micro-batch of its own.

    Uses first fit, longest samples first, so that the samples of a micro-batch have similar lengths and need little
    padding. Samples without trainable tokens are dropped. Returns at least `at_least` micro-batches unless there are
    fewer samples. Samples with different sampling parameters never share a micro-batch. If `share_rows` is False,
    every sample has its own row, and `single_row` is ignored. The result depends only on the arguments.
    """
    by_sampling: dict[str, list[_Item]] = {}
    for index, sample in enumerate(samples):
        key = "" if sample.sampling is None else sample.sampling.model_dump_json()
        item = _Item(index, len(sample.token_ids), sample.trainable, sample.loss is SampleLoss.policy)
        by_sampling.setdefault(key, []).append(item)
    return [
        layout
        for items in by_sampling.values()
        for layout in _pack_equal(items, budget, single_row, at_least, share_rows)
    ]


def pack_lengths(
    lengths: Sequence[int], budget: int, single_row: bool = False, share_rows: bool = True
) -> list[Layout]:
    """Return layouts, as `pack` does, for sequences with these lengths whose tokens are all trainable."""
    items = [_Item(index, length, length, policy=False) for index, length in enumerate(lengths)]
    return _pack_equal(items, budget, single_row, 1, share_rows)


def _pack_equal(items: Sequence[_Item], budget: int, single_row: bool, at_least: int, share_rows: bool) -> list[Layout]:
    """Return layouts of samples with the same sampling parameters, as `pack` does."""
    waiting = sorted((item for item in items if item.trainable), key=lambda item: -item.length)
    layouts = _pack(waiting, budget, single_row, share_rows)
    if len(layouts) < at_least:
        parts = min(at_least, len(waiting))
        layouts = [layout for i in range(parts) for layout in _pack(waiting[i::parts], budget, single_row, share_rows)]
    return layouts


def _pack(waiting: list[_Item], budget: int, single_row: bool, share_rows: bool) -> list[Layout]:
    layouts = []
    while waiting:
        longest = waiting[0].length
        most = max(1, budget // longest)
        if not share_rows:
            rows, waiting = [[item] for item in waiting[:most]], waiting[most:]
        elif single_row:
            rows, waiting = _fill(waiting, max(budget, longest), 1)
        else:
            rows, waiting = _fill(waiting, longest, most)
        items = [item for row in rows for item in row]
        layouts.append(
            Layout(
                rows=[[item.index for item in row] for row in rows],
                width=max(sum(item.length for item in row) for row in rows),
                tokens=sum(item.length for item in items),
                trainable=sum(item.trainable for item in items),
                policy_tokens=sum(item.trainable for item in items if item.policy),
            )
        )
    return layouts


def _fill(waiting: list[_Item], width: int, most: int) -> tuple[list[list[_Item]], list[_Item]]:
    rows: list[list[_Item]] = []
    room: list[int] = []
    left = []
    for item in waiting:
        row = next((r for r, free in enumerate(room) if free >= item.length), None)
        if row is None and len(rows) < most:
            row = len(rows)
            rows.append([])
            room.append(width)
        if row is None:
            left.append(item)
            continue
        rows[row].append(item)
        room[row] -= item.length
    return rows, left


def _rectangle(rows: list[list[_Arrays]], distribution: SamplingDistribution) -> MicroBatch:
    width = max(sum(len(sample.token_ids) for sample in row) for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    positions = np.zeros((len(rows), width), dtype=np.int64)
    placed: list[tuple[int, _Arrays]] = []
    for r, row in enumerate(rows):
        start = 0
        for sample in row:
            end = start + len(sample.token_ids)
            ids[r, start:end] = sample.token_ids
            positions[r, start:end] = np.arange(end - start)
            placed.append((r * width + start, sample))
            start = end
        positions[r, start:] = np.arange(width - start)
    placed.sort(key=lambda place: not place[1].policy)
    order = [sample for _, sample in placed]
    counts = np.array([len(sample.columns) for sample in order])
    teacher = _concatenate([sample.teacher for sample in order])
    past = HistoryBuilder()
    for sample in order if distribution.needs_token_history else ():
        past.add(sample.token_ids, sample.columns, sample.turn_starts)
    return MicroBatch(
        input_ids=torch.from_numpy(ids),
        position_ids=torch.from_numpy(positions),
        predicting=_concatenate([sample.columns + (offset - 1) for offset, sample in placed]),
        targets=_concatenate([sample.token_ids[sample.columns] for sample in order]),
        engine_logprobs=_concatenate([sample.logprobs for sample in order]),
        advantages=_concatenate([sample.advantages for sample in order]),
        teacher_logprobs=teacher if not teacher.isnan().all() else None,
        versions=_concatenate([sample.versions for sample in order]),
        sample_of=torch.from_numpy(np.repeat(np.arange(len(order)), counts)),
        policy_tokens=int(sum(count for count, sample in zip(counts, order, strict=True) if sample.policy)),
        samples=len(order),
        tokens=sum(len(sample.token_ids) for sample in order),
        distribution=distribution,
        history=past.history() if distribution.needs_token_history else None,
    )


def _concatenate(parts: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts))


def _arrays(sample: Sample) -> _Arrays:
    columns = np.flatnonzero(np.asarray(sample.loss_mask, dtype=bool))
    tokens = np.asarray(sample.token_ids, dtype=np.int64)
    turns = np.asarray(sample.turn_starts, dtype=np.int64)
    policy = sample.loss is SampleLoss.policy
    untaught = np.full(len(columns), np.nan, dtype=np.float32)
    versions = np.full(len(columns), sample.policy_version, dtype=np.int64)
    if sample.turn_versions is not None:
        versions = np.asarray(sample.turn_versions, dtype=np.int64)[np.searchsorted(turns, columns, side="right") - 1]
    if not policy:
        nothing = np.zeros(len(columns), dtype=np.float32)
        return _Arrays(tokens, columns, nothing, nothing, untaught, versions, policy, turns)
    logprobs = np.asarray(sample.logprobs, dtype=np.float32)[columns]
    if sample.teacher_logprobs is None:
        advantages = np.full(len(columns), sample.advantage, dtype=np.float32)
        return _Arrays(tokens, columns, logprobs, advantages, untaught, versions, policy, turns)
    teacher = np.asarray(sample.teacher_logprobs, dtype=np.float32)[columns]
    return _Arrays(tokens, columns, logprobs, np.zeros_like(teacher), teacher, versions, policy, turns)
