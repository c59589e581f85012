"""Routed experts to which each slot adds its own adapters.

transformers keeps the weights of a block's experts in two parameters: one whose rows are the gates and the up
projections, or the up projections alone, and one of the down projections. Each of the two parameters gets an adapter
with factors for each expert, so gate and up share their factor A. The adapters act between the products and the
activation, as in the engine, so the weights of the experts are neither copied nor changed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from transformers.integrations.moe import _grouped_linear

from rlrun_trainer.model.adapter_layer import Adapted

DOWN = "down_proj"
ALIGNMENT = 8
"""Grouped-product kernels need a rank that is a multiple of this number, so that a row of 16-bit numbers has a multiple
of 16 bytes. Other ranks are padded.
"""


def has_known_form(module: Any) -> bool:
    """Return True if transformers computes these experts with its common functions, so that `ExpertLayer` can compute
    them too.
    """
    return hasattr(module, "is_concatenated") and hasattr(module, "has_gate")


def parameter_names(module: Any) -> tuple[str, str]:
    """Return the names of the parameters of experts that get an adapter, in the order of computation."""
    return "gate_up_proj" if module.has_gate else "up_proj", DOWN


class ExpertLayer(torch.nn.Module):  # type: ignore[misc]
    """Routed experts of a block with the adapters of the active slot, if the slot has adapters for them."""

    def __init__(self, base_layer: Any) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.first, _ = parameter_names(base_layer)
        for name in parameter_names(base_layer):
            count, outputs, inputs = getattr(base_layer, name).shape
            if base_layer.is_transposed:
                outputs, inputs = inputs, outputs
            setattr(self, name, Adapted(inputs, outputs, count))

    def forward(self, states: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the output [tokens, hidden] for states [tokens, hidden] and for the experts and weights of each token
        [tokens, k].

        Computes as `grouped_mm_experts_forward` of transformers does.
        """
        base, first, down = self.base_layer, getattr(self, self.first), self.down_proj
        if first.lora_A is None:
            output: torch.Tensor = base(states, experts, weights)
            return output
        tokens, count = experts.shape
        numbers, order = torch.sort(experts.reshape(-1))
        # `bincount` would wait for the device.
        ends = torch.searchsorted(numbers, torch.arange(first.experts, device=numbers.device), right=True).int()
        inner = self._project(self.first, first, states[order // count], numbers, ends)
        inner = base._apply_gate(inner) if base.has_gate else base.act_fn(inner)
        rows = self._project(DOWN, down, inner, numbers, ends)
        if base.has_post_expert_norm:
            rows = base.post_expert_norm(rows)
        rows = rows * weights.reshape(-1)[order].unsqueeze(-1)
        return rows[torch.argsort(order)].view(tokens, count, -1).sum(1).to(states.dtype)

    def _project(
        self, name: str, adapted: Adapted, rows: torch.Tensor, numbers: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        base = self.base_layer
        bias = getattr(base, f"{name}_bias")[numbers] if base.has_bias else None
        output = _grouped_linear(rows, getattr(base, name), ends, bias, base.is_transposed)
        rows, a, b = adapted.inputs_and_factors(rows)
        missing = -a.shape[1] % ALIGNMENT
        a, b = F.pad(a, (0, 0, 0, missing)), F.pad(b, (0, missing))
        return (output + _grouped_linear(_grouped_linear(rows, a, ends), b, ends) * adapted.scale).to(output.dtype)


def add_expert_layer(model: Any, name: str) -> dict[str, Adapted]:
    """Replace the model's experts with this full name by an expert layer. Return its adapted maps by full name."""
    base = model.get_submodule(name)
    layer = ExpertLayer(base)
    model.set_submodule(name, layer)
    return {f"{name}.{parameter}": getattr(layer, parameter) for parameter in parameter_names(base)}
