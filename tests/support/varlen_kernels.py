"""Kernels for CPUs behind `torch.nn.attention.varlen`, whose own are for GPUs: the same operators, in plain torch.

They refuse what those for GPUs refuse, other precisions than float16 and bfloat16 excepted.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch.nn.attention import varlen

LARGEST_DEPTH = 256


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    depths = {tensor.shape[-1] for tensor in (query, key, value)}
    if len(depths) > 1 or max(depths) > LARGEST_DEPTH or max(depths) % 8:
        raise RuntimeError(f"heads of {depths} are not supported")
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        raise RuntimeError("the last dimension must be contiguous")


def _samples(starts: torch.Tensor, longest: int) -> Iterator[slice]:
    assert starts.dtype == torch.int32
    for start, end in itertools.pairwise(starts.tolist()):
        assert 0 < end - start <= longest
        yield slice(start, end)


def _probabilities(
    query: torch.Tensor, key: torch.Tensor, scale: float | None, window: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [heads, T, T] of one sample's query and key [T, heads, depth], and log of their sum [heads, T]."""
    assert window[1] == 0, "causal"
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    back = torch.arange(len(query))[:, None] - torch.arange(len(query))
    kept = (back >= 0) & (back <= window[0] if window[0] >= 0 else back >= 0)
    scores = scores.masked_fill(~kept, -torch.inf)
    return scores.softmax(-1), scores.logsumexp(-1)


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: list[int] | None = None,
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _check(query, key, value)
    outputs, totals = [], []
    for sample in _samples(cu_seq_q, max_q):
        p, total = _probabilities(query[sample], key[sample], scale, window_size or (-1, -1))
        values = value[sample].repeat_interleave(query.shape[1] // value.shape[1], 1).float()
        outputs.append(torch.einsum("hqk,khd->qhd", p, values).to(query.dtype))
        totals.append(total)
    return torch.cat(outputs), torch.cat(totals, 1), torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: torch.Tensor,
    scale: float | None = None,
    window_size: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    groups = query.shape[1] // key.shape[1]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    for sample in _samples(cu_seq_q, max_q):
        p, _ = _probabilities(query[sample], key[sample], scale, window_size or (-1, -1))
        slope = grad_out[sample].float()
        values = value[sample].repeat_interleave(groups, 1).float()
        keys = key[sample].repeat_interleave(groups, 1).float()
        # Like the kernels of GPUs, from the output that the forward pass returned.
        own = (slope * out[sample].float()).sum(-1).T[..., None]
        scores = p * (torch.einsum("qhd,khd->hqk", slope, values) - own) * factor
        found[0][sample] = torch.einsum("hqk,khd->qhd", scores, keys).to(query.dtype)
        parts = (
            torch.einsum("hqk,qhd->khd", weights, states)
            for weights, states in ((scores, query[sample].float()), (p, slope))
        )
        for gradient, part in zip(found[1:], parts, strict=True):
            gradient[sample] = part.unflatten(1, (-1, groups)).sum(2).to(query.dtype)
    return found[0], found[1], found[2]


varlen._varlen_attn.register_kernel("cpu")(_forward)
varlen._varlen_attn_backward.register_kernel("cpu")(_backward)
