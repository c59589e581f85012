"""Groups a batch's rows by adapter, once per forward pass for all layers.

The rollouts of a policy usually share one adapter. The result is then one slice of all rows, and matrix products use
views instead of copies. Mixed batches (two policy versions, or several runs in one pool) cost one gather per adapter.
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
        slots: [rows], int64; the adapter slot of each row, or -1 for the base model.

    Returns:
        One entry per adapter in the batch, in ascending order of slots. Rows without an adapter are omitted.
    """
    present = [slot for slot in torch.unique(slots).tolist() if slot >= 0]
    return [AdapterRows(slot, _rows(slots, slot)) for slot in present]


def _rows(slots: torch.Tensor, slot: int) -> Rows:
    indices = torch.nonzero(slots == slot).squeeze(1)
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else indices
