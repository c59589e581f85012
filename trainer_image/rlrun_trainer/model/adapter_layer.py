"""Linear maps to which each slot adds its own adapter.

A layer refers to the factors of the active slot. The slots store the factors, so opening a slot creates only tensors,
and activating a slot only changes references, while peft adds modules to the model for each adapter.

The output is peft's, bit for bit: `base(x) + B(A(dropout(x))) * alpha / rank`. In bfloat16 models, adapters compute in
bfloat16 like the engine, while their weights stay in float32. peft would copy the input of each layer to float32 and
keep the copy for the backward pass. In other models adapters compute in float32. In float16 their gradients would
underflow, because losses are not scaled.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True, eq=False)
class Factors:
    """Adapter of one layer in one slot. For routed experts the factors' first dimension is the expert."""

    a: torch.Tensor
    """Factor [..., rank, in_features]."""
    b: torch.Tensor
    """Factor [..., out_features, rank]."""
    scale: float
    dropout: float
    """Probability with which elements of the layer's input are dropped for the adapter."""


class Adapted(torch.nn.Module):  # type: ignore[misc]
    """Linear map with the adapter of the active slot, if the slot has one for it.

    The active factors are parameters of this module, and `point_to` replaces them.
    """

    def __init__(self, in_features: int, out_features: int, experts: int | None = None) -> None:
        """`experts` is the number of experts, each with a map of its own. None means a single map."""
        super().__init__()
        self.in_features, self.out_features, self.experts = in_features, out_features, experts
        self.register_parameter("lora_A", None)
        self.register_parameter("lora_B", None)
        self.scale = 0.0
        self.dropout = 0.0

    def shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of an adapter's factors A and B."""
        first = () if self.experts is None else (self.experts,)
        return (*first, rank, self.in_features), (*first, self.out_features, rank)

    def inputs_and_factors(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the adapter's input for states [..., in_features], and its factors, both in the dtype in which the
        adapter computes.
        """
        a, b = self.lora_A, self.lora_B
        if states.dtype == torch.bfloat16:
            a, b = a.to(states.dtype), b.to(states.dtype)
        else:
            states = states.to(a.dtype)
        if self.dropout:
            states = F.dropout(states, self.dropout, self.training)
        return states, a, b

    def point_to(self, factors: Factors | None) -> None:
        """Use these factors from now on, or no adapter if `factors` is None."""
        # Direct writes, because a model has hundreds of layers and `Module.__setattr__` checks each value.
        own, parameters = self.__dict__, self._parameters
        if factors is None:
            parameters["lora_A"] = parameters["lora_B"] = None
        else:
            parameters["lora_A"], parameters["lora_B"] = factors.a, factors.b
            own["scale"], own["dropout"] = factors.scale, factors.dropout


class AdapterLayer(Adapted):
    """Linear layer with the adapter of the active slot."""

    def __init__(self, base_layer: torch.nn.Linear) -> None:
        super().__init__(base_layer.in_features, base_layer.out_features)
        self.base_layer = base_layer

    @property
    def weight(self) -> torch.Tensor:
        """Weights of the base layer."""
        return self.base_layer.weight

    @property
    def bias(self) -> torch.Tensor | None:
        """Bias of the base layer."""
        return self.base_layer.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the output [..., out_features] for states [..., in_features], in the dtype of the base layer's
        output.
        """
        output = self.base_layer(states)
        if self.lora_A is None:
            return output
        states, a, b = self.inputs_and_factors(states)
        low = F.linear(states, a)
        if math.frexp(self.scale)[0] == 0.5:
            # A power of two rounds nothing, so it may multiply B's input, which is much smaller than its output.
            return (output + F.linear(low * self.scale, b)).to(output.dtype)
        return (output + F.linear(low, b) * self.scale).to(output.dtype)


def add_adapter_layer(model: Any, name: str) -> AdapterLayer:
    """Replace the model's linear layer with this full name by an adapter layer, and return it."""
    layer = AdapterLayer(model.get_submodule(name))
    model.set_submodule(name, layer)
    return layer


def activate(layers: Mapping[str, Adapted], factors: Mapping[str, Factors]) -> None:
    """Make each layer use its factors. Layers without factors compute the same as the base model."""
    for name, layer in layers.items():
        layer.point_to(factors.get(name))
