"""Adapters of linear layers, with the full width of FSDP-sharded layers and in the model's precision.

Adapters compute in bfloat16 if the model does, while their weights stay in float32.

peft computes an adapter in the precision of its weights: it copies the input of each layer to float32 and keeps the
copy for the backward pass. Engines compute adapters in the model's precision. In float16 the gradients of adapters
would underflow, because losses are not scaled, so float16 models keep peft's layers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig
from peft.tuners.lora import Linear, LoraLayer


class WholeLinear(Linear):  # type: ignore[misc]
    """Linear layer whose adapters have the full width of the layer, even if FSDP shards its weights.

    peft recognizes FSDP by the name of the mesh's only dimension. It mistakes any other mesh for tensor parallelism and
    gives adapters only the width of this process's shard.
    """

    def _get_in_out_features(self, module: torch.nn.Module) -> tuple[int, int]:
        return module.in_features, module.out_features


def as_wide_as_layers(config: LoraConfig) -> LoraConfig:
    """Change the configuration in place so that adapters of linear layers are `WholeLinear`, and return it."""
    config._register_custom_module({torch.nn.Linear: WholeLinear})
    return config


class AdapterLinear(torch.nn.Linear):  # type: ignore[misc]
    """Linear layer that casts its weights to the dtype of its input, and the gradient back."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] in the dtype of the input [..., in_features]."""
        return F.linear(input, self.weight.to(input.dtype))


def compute_in_model_dtype(model: Any, adapter: str, dtype: torch.dtype) -> None:
    """Replace the factors of the adapter's layers in place if `dtype`, the model's compute precision, is bfloat16.

    The parameters stay the same objects.
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
