"""LoRA for vLLM on CPUs, one matrix product per adapter.

vLLM's own wrapper copies the adapter's matrices once for every token (`weights[indices]`) and multiplies them one by
one; with small models that copy is most of the engine's time. Here the batch is grouped by adapter, and each group is
multiplied at once: y[rows] += (x[rows] A^T) B^T. As in vLLM, the inner product is float32 and the outer one has the
type of the output; alpha / rank is already in B.

vLLM also lets a row without an adapter (-1) index the last slot; here such a row keeps the base model's answer.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from rlrun_inference.adapter_rows import AdapterRows, group_by_adapter


class LoraByAdapter(PunicaWrapperCPU):  # type: ignore[misc]
    """vLLM's CPU wrapper with its two hot paths, linear layers and logits, multiplied by adapter."""

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Take the batch's mapping and group its rows; called once before each forward pass."""
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
        """Add the adapters' part to a linear layer's output, in place.

        Args:
            y: [rows, sum of output_slices], changed.
            x: [rows, inputs].
            lora_a_stacked: Per slice [slots, 1, rank, inputs].
            lora_b_stacked: Per slice [slots, 1, outputs of the slice, rank].
            scale: Factor on the product.
            output_slices: Outputs of each slice, e.g. of q, k and v in one fused layer.
            kwargs: Taken for the base class's sake; the buffer in it is not needed.
        """
        start = 0
        for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            _add(y[:, start : start + width], x, a, b, scale, self._token_rows)
            start += width

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        **kwargs: Any,
    ) -> None:
        """Add the adapters' part of the head to the logits, in place.

        vLLM calls this for every model. Where no adapter has weights for the head, A is zero and nothing is left to do.

        Args:
            y: [sampled rows, vocabulary], changed.
            x: [sampled rows, hidden].
            lora_a_stacked: [slots, 1, rank, hidden].
            lora_b_stacked: [slots, 1, vocabulary, rank].
            scale: Factor on the product.
            kwargs: Taken for the base class's sake.
        """
        trained = [group for group in self._sampler_rows if bool(lora_a_stacked[group.slot].any())]
        width = min(y.shape[-1], lora_b_stacked.shape[-2])  # model and adapter pad the vocabulary differently
        _add(y[:, :width], x, lora_a_stacked, lora_b_stacked[:, :, :width], scale, trained)


def _add(
    y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float, groups: list[AdapterRows]
) -> None:
    for group in groups:
        inner = torch.mm(x[group.rows].float(), a[group.slot, 0].float().t()).to(y.dtype)
        outer = b[group.slot, 0].to(y.dtype).t()
        if isinstance(group.rows, slice):
            y[group.rows].addmm_(inner, outer, alpha=scale)
        else:
            y.index_add_(0, group.rows, torch.mm(inner, outer), alpha=scale)
