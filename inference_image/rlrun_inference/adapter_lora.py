"""LoRA for vLLM on CPUs, with one matrix product per adapter.

vLLM's wrapper copies the adapter's matrices for every token (`weights[indices]`) and multiplies each copy; with small
models this takes most of the engine's time. Here the batch is grouped by adapter and each group is multiplied at once:
y[rows] += (x[rows] A^T) B^T. As in vLLM, the inner product is float32 and the outer product has the output's type; B
includes alpha / rank.

In vLLM a row without an adapter (-1) selects the last slot; here such a row keeps the base model's output.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from rlrun_inference.adapter_rows import AdapterRows, group_by_adapter


class LoraByAdapter(PunicaWrapperCPU):  # type: ignore[misc]
    """vLLM's LoRA wrapper for CPUs, which multiplies all rows of an adapter at once in embeddings, linear layers and
    logits.
    """

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Store the batch's mapping from rows to adapters and group the rows. Called once before each forward pass."""
        super().update_metadata(*args, **kwargs)
        self._token_rows = group_by_adapter(self.token_lora_indices)
        self._sampler_rows = group_by_adapter(self.sampler_indices)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> None:
        """Add the adapters' contribution to a linear layer's output, in place.

        Args:
            y: [rows, sum of output_slices], changed.
            x: [rows, inputs].
            lora_a_stacked: Per slice [slots, 1, rank, inputs].
            lora_b_stacked: Per slice [slots, 1, outputs of the slice, rank].
            scale: Factor on the product.
            output_slices: Outputs of each slice, e.g. of q, k and v in one fused layer.
            kwargs: Ignored. vLLM passes a buffer.
        """
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            part = y[:, start : start + width]
            for group in self._token_rows:
                _add(part, _shrunk(x, a, group), b, scale, group)
            start += width

    def add_lora_embedding(
        self, y: torch.Tensor, x: torch.Tensor, lora_b_stacked: torch.Tensor, add_inputs: bool = True, **kwargs: Any
    ) -> None:
        """Add the adapters' contribution to the embeddings, in place. vLLM has already selected the rows of A.

        If no adapter has weights for the embedding, B is zero and nothing is added.

        Args:
            y: [rows, hidden], changed.
            x: [rows, rank].
            lora_b_stacked: [slots, 1, hidden, rank].
            add_inputs: Ignored. vLLM never passes False, which would replace y instead of adding to it.
            kwargs: Ignored. Parameters of the base class.
        """
        for group in self._token_rows:
            if bool(lora_b_stacked[group.slot].any()):
                _add(y, x[group.rows], lora_b_stacked, 1.0, group)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        **kwargs: Any,
    ) -> None:
        """Add the contribution of the adapters' head weights to the logits, in place.

        vLLM calls this for every model. If no adapter has weights for the head, A is zero and nothing is added.

        Args:
            y: [sampled rows, vocabulary], changed.
            x: [sampled rows, hidden].
            lora_a_stacked: [slots, 1, rank, hidden].
            lora_b_stacked: [slots, 1, vocabulary, rank].
            scale: Factor on the product.
            kwargs: Ignored. Parameters of the base class.
        """
        width = min(y.shape[-1], lora_b_stacked.shape[-2])  # model and adapter pad the vocabulary differently
        for group in self._sampler_rows:
            if bool(lora_a_stacked[group.slot].any()):
                shrunk = _shrunk(x, lora_a_stacked, group)
                _add(y[:, :width], shrunk, lora_b_stacked[:, :, :width], scale, group)


def _shrunk(x: torch.Tensor, a: torch.Tensor, group: AdapterRows) -> torch.Tensor:
    return torch.mm(x[group.rows].float(), a[group.slot, 0].float().t())


def _add(y: torch.Tensor, shrunk: torch.Tensor, b: torch.Tensor, scale: float, group: AdapterRows) -> None:
    inner, outer = shrunk.to(y.dtype), b[group.slot, 0].to(y.dtype).t()
    if isinstance(group.rows, slice):
        y[group.rows].addmm_(inner, outer, alpha=scale)
    else:
        y.index_add_(0, group.rows, torch.mm(inner, outer), alpha=scale)
