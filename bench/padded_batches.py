"""Padded batches for the plain loop, in the order of the samples or sorted by length. Pure.

Sorting by length is the usual remedy for padding, and one line in a hand-written loop, so the trainer's packing is
compared with it as well.
"""

from collections.abc import Sequence


def in_order(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of indexes in the order of the samples. A batch has as many rows as fit the budget at the length
    of the longest of all samples.
    """
    rows = max(1, budget // max(lengths))
    return [list(range(len(lengths)))[i : i + rows] for i in range(0, len(lengths), rows)]


def sorted_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of indexes, longest samples first. A batch has as many rows as fit the budget at the length of its
    own longest sample.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    while order:
        rows = max(1, budget // lengths[order[0]])
        batches.append(order[:rows])
        order = order[rows:]
    return batches


def padding(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """Return the fraction of positions without a token."""
    positions = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return 1 - sum(lengths) / positions
