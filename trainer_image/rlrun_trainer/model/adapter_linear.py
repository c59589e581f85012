"""Layers of adapters that compute in bfloat16 if the model does, while their weights stay in float32.

peft computes an adapter in the precision of its weights, and so copies the input of each layer to float32, and keeps
the copy for the backward pass. Engines compute adapters in the model's precision. In float16 gradients of adapters
would be too small for its exponent, because losses are not scaled, so such models keep peft's layers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import LoraLayer


class AdapterLinear(torch.nn.Linear):  # type: ignore[misc]
    """Linear layer that casts its weights to the dtype of its input, and their gradient back."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] in the dtype of the input [..., in_features]."""
        return F.linear(input, self.weight.to(input.dtype))


def compute_in_model_dtype(model: Any, adapter: str, dtype: torch.dtype) -> None:
    """Replace the layers of the adapter, in place, if `dtype`, that of the model's computation, is bfloat16.

    Their parameters stay the same objects.
    """
    if dtype != torch.bfloat16:
        return
    for layer in model.modules():
        if isinstance(layer, LoraLayer) and adapter in layer.lora_A:
            layer.cast_input_dtype_enabled = False
            for factors in (layer.lora_A, layer.lora_B):
                factors[adapter] = _with_weight_of(factors[adapter])


def _with_weight_of(layer: torch.nn.Linear) -> AdapterLinear:
    assert layer.bias is None
    made = AdapterLinear(layer.in_features, layer.out_features, bias=False, device="meta")
    made.weight = layer.weight
    return made
