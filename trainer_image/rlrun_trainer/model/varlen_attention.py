"""Attention over packed samples without a mask: torch's kernel for sequences of different lengths, as an implementation
of attention in transformers.

The kernel gets the boundaries of the samples. A mask of all pairs of a row's tokens, which other implementations need,
costs more than attention itself: at 16,384 tokens it took half of a step's time on an H200.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "varlen"
"""Name of the implementation in transformers, and value of the trainer's setting `attention`."""
NOT_COMPUTED = ("s_aux", "softcap")
"""Arguments of attention that the kernel does not support: sinks (gpt-oss) and soft caps (Gemma 2)."""


@dataclass(frozen=True)
class Boundaries:
    """Boundaries of the samples in a micro-batch whose rows are concatenated."""

    starts: torch.Tensor
    """[samples + 1] int32: index of each sample's first token, then the total number of tokens."""
    longest: int
    """Number of tokens in the longest sample."""

    @classmethod
    def of(cls, position_ids: torch.Tensor) -> "Boundaries":
        """Return the boundaries for position ids [rows, width], which restart at 0 with every sample and row."""
        flat = position_ids.flatten()
        starts = F.pad((flat == 0).nonzero().flatten(), (0, 1), value=len(flat)).to(torch.int32)
        return cls(starts, int(starts.diff().max()))


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    boundaries: Boundaries | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Return the causal attention [rows, width, heads, depth] of query, key and value [rows, heads, width, depth].

    A token attends to itself and to earlier tokens of its sample, at most `sliding_window` tokens in all. Key and value
    may have fewer heads than the query, and values may have a different depth. Raises ValueError for other kinds of
    attention.
    """
    if boundaries is None:
        raise ValueError("the model does not pass the boundaries of samples to its attention")
    if attention_mask is not None or key.shape[2] != query.shape[2]:
        raise ValueError("the model creates its own mask")
    if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
        raise ValueError("attention is not causal")
    for name in NOT_COMPUTED:
        if arguments.get(name) is not None:
            raise ValueError(f"the kernel has no {name}")
    rows, heads, width, depth = query.shape
    # The kernel needs the same depth for queries and values. Zeros after the values give zeros after the output.
    padded = F.pad(value, (0, depth - value.shape[-1]))
    output = varlen_attn(
        *(states.transpose(1, 2).flatten(0, 1) for states in (query, key, padded)),
        boundaries.starts,
        boundaries.starts,
        boundaries.longest,
        boundaries.longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        enable_gqa=heads != key.shape[1],
    )
    return output[..., : value.shape[-1]].unflatten(0, (rows, width)), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)
