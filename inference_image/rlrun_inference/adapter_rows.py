"""Which rows of a batch belong to which adapter, found once per forward pass and used by every layer.

A policy's rollouts nearly always share one adapter, so the usual answer is one slice over the whole batch, and the
products below run on views. Mixed batches (two policy versions for a moment, or several runs in one pool) cost one
gather per adapter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Rows = slice | torch.Tensor


@dataclass(frozen=True)
class AdapterRows:
    """Rows of one adapter: its slot in the stacked weights, and a slice or a tensor of indices (int64, [rows])."""

    slot: int
    rows: Rows


def group_by_adapter(slots: torch.Tensor) -> list[AdapterRows]:
    """Group a batch's rows by adapter.

    Args:
        slots: [rows], int64; the slot of each row's adapter, -1 where the base model answers.

    Returns:
        One entry per adapter in the batch, by slot; rows without an adapter are in none.
    """
    present = [slot for slot in torch.unique(slots).tolist() if slot >= 0]
    return [AdapterRows(slot, _rows(slots, slot)) for slot in present]


def _rows(slots: torch.Tensor, slot: int) -> Rows:
    indices = torch.nonzero(slots == slot).squeeze(1)
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else indices
