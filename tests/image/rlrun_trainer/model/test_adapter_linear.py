from pathlib import Path

import pytest
import torch
from rlrun_trainer.model.adapter_linear import AdapterLinear
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel

from tests.support import tiny_model

TOKENS = 50
"""Different from all sizes of the model."""


def opened(base: BaseModel) -> AdapterSlot:
    """Open a slot and fill its adapter with the same random weights for every base."""
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    base.activate(slot)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.copy_(torch.randn(parameter.shape) * 0.1)
    return slot


def layers(base: BaseModel) -> list[AdapterLinear]:
    return [module for module in base.model.modules() if isinstance(module, AdapterLinear)]


def kept_for_backward(base: BaseModel) -> list[torch.Tensor]:
    """Return the tensors that autograd keeps for the backward pass of one layer with an adapter."""
    layer = base.model.model.layers[0].mlp.down_proj
    dtype = layer.base_layer.weight.dtype
    states = torch.randn(TOKENS, layer.in_features, dtype=dtype, device=base.device, requires_grad=True)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert layer(states).dtype == dtype
    return kept


def test_the_backward_pass_keeps_no_float32_copy_of_a_layers_input(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, dtype="bfloat16")
    opened(base)
    inputs = [tensor for tensor in kept_for_backward(base) if TOKENS in tensor.shape]
    assert inputs
    assert {tensor.dtype for tensor in inputs} == {torch.bfloat16}


def test_gradients_in_bfloat16_are_nearly_those_in_float32(model_dir: Path) -> None:
    gradients = {}
    for dtype in ("bfloat16", "float32"):
        base = tiny_model.load(model_dir, dtype=dtype)
        slot = opened(base)
        ids = torch.arange(TOKENS, device=base.device)[None] % tiny_model.VOCABULARY
        hidden = base.hidden_states(ids, ids).float()
        direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2)).to(base.device)
        (hidden * direction).sum().backward()
        gradients[dtype] = {name: p.grad for name, p in slot.parameters.items()}
    for name, rough in gradients["bfloat16"].items():
        exact = gradients["float32"][name]
        assert rough is not None
        assert exact is not None
        assert float((rough - exact).norm() / exact.norm()) < 0.1, name


def test_a_change_too_small_for_bfloat16_stays_in_the_weights(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, dtype="bfloat16")
    slot = opened(base)
    parameter = next(iter(slot.parameters.values()))
    with torch.no_grad():
        parameter.fill_(1.0).add_(1e-4)
    ids = torch.arange(12, device=base.device)[None]
    base.hidden_states(ids, ids).float().sum().backward()
    assert float(parameter.detach().flatten()[0]) == pytest.approx(1.0001)


def test_slots_have_layers_of_their_own_and_closing_removes_them(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, dtype="bfloat16")
    first = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    assert {id(layer.weight) for layer in layers(base)} == {id(p) for p in first.parameters.values()}
    base.open("b", tiny_model.MODEL, tiny_model.SHAPE, 1)
    assert len(layers(base)) == 2 * len(first.parameters)
    base.close("a")
    base.close("b")
    assert layers(base) == []


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_models_of_another_precision_keep_the_layers_of_peft(model_dir: Path, dtype: str) -> None:
    base = tiny_model.load(model_dir, dtype=dtype)
    opened(base)
    assert layers(base) == []
    kept = [tensor for tensor in kept_for_backward(base) if TOKENS in tensor.shape]
    assert torch.float32 in {tensor.dtype for tensor in kept}
