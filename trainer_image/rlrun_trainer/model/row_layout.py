"""Check whether several samples may share a row of a micro-batch.

Attention separates the samples of a row where their positions restart. Layers of linear attention, convolution or mamba
ignore positions: they carry state from one sample into the next. Models with such layers, and models whose log
probabilities change when two samples share a row, get one sample per row, followed by padding. Models whose attention
works on chunks or blocks of tokens also get one sample per row, because transformers counts chunks from the start of
the row, not of the sample.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError

NOT_MIXING = frozenset({"moe", "mlp"})
"""Layer types without `attention` in their name that do not mix tokens."""
MIXING_ATTENTION = frozenset(
    {"linear_attention", "chunked_attention", "compressed_sparse_attention", "heavily_compressed_attention"}
)
"""Layer types with `attention` in their name that mix the samples of a row."""
LENGTHS = (24, 16)
"""Lengths in tokens of the two samples of the check. Mixing in chunks longer than both samples cannot be detected."""
EXACT, ROUNDED = 1e-3, 0.05
"""Maximum mean difference of log probabilities, in nats, for computation in float32 and in lower precision."""
NOISE = 3.0
"""Maximum ratio of the difference in a shared row to the difference in separate rows that counts as rounding."""
NOISE_LIMIT = 2.0
"""Multiple of the tolerance up to which a difference in a shared row may count as rounding because of NOISE."""
REFUSAL = 5.0
"""Multiple of the tolerance above which the model is rejected. It is larger than the limits for sharing rows, because
exceeding those only costs speed.
"""

Hidden = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class RowDifference:
    """Mean absolute difference in nats per token between the log probabilities of a sample in a batch and of the same
    sample alone.
    """

    shared: float
    """Difference with both samples in one row."""
    separate: float
    """Difference with each sample in its own row, the shorter one padded."""


def mixing_layers(types: Sequence[str] | None) -> list[str]:
    """Return the layer types of a configuration that may mix samples in a row."""
    return [kind for kind in dict.fromkeys(types or ()) if not _separates(kind)]


def tolerance(dtype: torch.dtype) -> float:
    """Return the maximum mean difference, in nats, that counts as rounding in this precision."""
    return EXACT if dtype == torch.float32 else ROUNDED


@dataclass(frozen=True)
class PlacedSamples:
    """Samples in the rows of a batch, each row padded after its last sample."""

    input_ids: torch.Tensor
    """[rows, width] int64"""
    position_ids: torch.Tensor
    """[rows, width] int64. Positions restart at 0 with every sample and with the padding."""
    places: list[tuple[int, int, torch.Tensor]]
    """Row, first column and token ids of each sample."""

    def logprobs(self, states: torch.Tensor, head: Head) -> list[torch.Tensor]:
        """Return the log probabilities [T - 1, 1] of each sample's tokens from hidden states [rows, width, H]."""
        return [
            torch.log_softmax(head(states[row, start : start + len(ids) - 1]).float(), -1).gather(-1, ids[1:, None])
            for row, start, ids in self.places
        ]


def random_samples(vocab_size: int, device: torch.device) -> list[torch.Tensor]:
    """Return the two samples of the check, which consist of random tokens."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (n,), generator=generator).to(device) for n in LENGTHS]


def lay_out(rows: Sequence[Sequence[torch.Tensor]]) -> PlacedSamples:
    """Return the batch with these samples in its rows."""
    width = max(sum(map(len, row)) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64, device=rows[0][0].device)
    layout = PlacedSamples(ids, torch.zeros_like(ids), [])
    for r, row in enumerate(rows):
        start = 0
        for sample in row:
            end = start + len(sample)
            ids[r, start:end] = sample
            layout.position_ids[r, start:end] = torch.arange(len(sample))
            layout.places.append((r, start, sample))
            start = end
        layout.position_ids[r, start:] = torch.arange(width - start)
    return layout


def measure(hidden: Hidden, head: Head, vocab_size: int, device: torch.device) -> RowDifference:
    """Compute the log probabilities of two random samples: each alone, both in one row, and each in its own row of a
    batch. Returns how much the two batches differ from the samples alone.

    All processes that share the model must call it.

    `hidden` maps token ids and positions [rows, width] to hidden states, and `head` maps hidden states to logits.
    """
    first, second = random_samples(vocab_size, device)

    def logprobs(*rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        layout = lay_out(rows)
        return layout.logprobs(hidden(layout.input_ids, layout.position_ids), head)

    with torch.no_grad():
        alone = logprobs([first]) + logprobs([second])
        return RowDifference(
            shared=difference(logprobs([first, second]), alone),
            separate=difference(logprobs([first], [second]), alone),
        )


def choose_packing(drift: RowDifference, mixing: Sequence[str], dtype: torch.dtype) -> tuple[bool, Problem | None]:
    """Decide whether samples may share a row. Also returns a warning if the measured `drift` is the only reason against
    shared rows.

    Raises ProblemError (SamplesNotSeparated) if log probabilities differ even with one sample per row.
    """
    limit = tolerance(dtype)
    if not drift.separate <= REFUSAL * limit:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.SAMPLES_NOT_SEPARATED,
            f"Computing several samples in one batch changes their log probabilities by {drift.separate:.2g} nats per "
            f"token, even with one sample per row (rounding explains at most {REFUSAL * limit:g}). Training would use "
            "wrong probabilities. Use another model.",
        )
    if mixing:
        return False, None
    if drift.shared <= max(limit, min(NOISE * drift.separate, NOISE_LIMIT * limit)):
        return True, None
    return False, Problem(
        reason=Reason.PACKING_DISABLED,
        message=f"If two samples share a row, their log probabilities differ by {drift.shared:.2g} nats per token from "
        "those of each sample computed alone, so this model mixes the samples of a row. The trainer computes one "
        "sample per row instead. Results are correct, but training is slower. No action is needed.",
    )


def _separates(kind: str) -> bool:
    return kind in NOT_MIXING or (kind.endswith("attention") and kind not in MIXING_ATTENTION)


def difference(found: Sequence[torch.Tensor], alone: Sequence[torch.Tensor]) -> float:
    """Return the largest mean absolute difference in a sample's log probabilities."""
    return max(float((ours - theirs).abs().mean()) for ours, theirs in zip(found, alone, strict=True))
