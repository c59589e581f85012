"""Adapters of linear layers: as wide as the layers where FSDP divides those, and in the model's precision.

Adapters compute in bfloat16 if the model does, while their weights stay in float32.

peft computes an adapter in the precision of its weights, and so copies the input of each layer to float32, and keeps
the copy for the backward pass. Engines compute adapters in the model's precision. In float16 gradients of adapters
would be too small for its exponent, because losses are not scaled, so such models keep peft's layers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig
from peft.tuners.lora import Linear, LoraLayer


class WholeLinear(Linear):  # type: ignore[misc]
    """Layer with adapters that are as wide as the layer, also where FSDP divides its weights among processes.

    peft knows FSDP by the name of the mesh's only dimension. It takes any other mesh for tensor parallelism and makes
    adapters as wide as the part of this process.
    """

    def _get_in_out_features(self, module: torch.nn.Module) -> tuple[int, int]:
        return module.in_features, module.out_features


def as_wide_as_layers(config: LoraConfig) -> LoraConfig:
    """Return the configuration, changed in place so that adapters of linear layers are `WholeLinear`."""
    config._register_custom_module({torch.nn.Linear: WholeLinear})
    return config


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
