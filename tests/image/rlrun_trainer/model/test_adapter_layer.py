import gc
import weakref
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from rlrun_trainer.model.adapter_layer import AdapterLayer
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.peft_format import AdapterShape

from tests.support import tiny_model

TOKENS = 50
"""Different from all sizes of the model."""


def fill(slot: AdapterSlot) -> None:
    """Fill the adapter with the same random weights in every call."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.copy_(torch.randn(parameter.shape) * 0.1)


def opened(base: BaseModel, dropout: float = 0.0, alpha: float = tiny_model.ALPHA) -> AdapterSlot:
    """Open a slot, fill its adapter and activate it."""
    shape = AdapterShape(tiny_model.RANK, alpha, tiny_model.TARGETS, dropout)
    slot = base.open("a", tiny_model.MODEL, shape, 0)
    base.activate(slot)
    fill(slot)
    return slot


def token_ids(base: BaseModel) -> torch.Tensor:
    return torch.arange(TOKENS, device=base.device)[None] % tiny_model.VOCABULARY


def backward(base: BaseModel) -> None:
    """Backpropagate a fixed direction of the hidden states, with the same random numbers in every call."""
    ids = token_ids(base)
    torch.manual_seed(3)
    hidden = base.hidden_states(ids, torch.arange(TOKENS, device=base.device)[None]).float()
    direction = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2)).to(base.device)
    (hidden * direction).sum().backward()


def logits(base: BaseModel) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = base.model(input_ids=token_ids(base), use_cache=False).logits
    return result


def kept_for_backward(base: BaseModel) -> list[torch.Tensor]:
    """Return the tensors that autograd keeps for the backward pass of one layer with an adapter."""
    layer = base.model.model.layers[0].mlp.down_proj
    states = torch.randn(TOKENS, layer.in_features, dtype=layer.weight.dtype, device=base.device, requires_grad=True)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert layer(states).dtype == layer.weight.dtype
    return kept


@pytest.mark.parametrize("alpha", [tiny_model.ALPHA, tiny_model.RANK / 3])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_outputs_and_gradients_are_those_of_stock_peft_bit_for_bit(
    model_dir: Path, dtype: str, dropout: float, alpha: float
) -> None:
    ours, theirs = (tiny_model.load(model_dir, dtype=dtype) for _ in range(2))
    slot = opened(ours, dropout, alpha)
    config = LoraConfig(
        r=tiny_model.RANK, lora_alpha=alpha, lora_dropout=dropout, target_modules=list(tiny_model.TARGETS)
    )
    inject_adapter_in_model(config, theirs.model, "default")
    named = {
        f"base_model.model.{name.replace('.default', '')}": parameter
        for name, parameter in theirs.model.named_parameters()
        if "lora_" in name
    }
    assert named.keys() == slot.parameters.keys()
    for name, parameter in named.items():
        parameter.data = slot.parameters[name].detach().clone()
    backward(ours)
    backward(theirs)
    for name, parameter in slot.parameters.items():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, named[name].grad), name


def test_the_backward_pass_keeps_no_float32_copy_of_a_layers_input(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, dtype="bfloat16")
    opened(base)
    inputs = [tensor for tensor in kept_for_backward(base) if TOKENS in tensor.shape]
    assert inputs
    assert {tensor.dtype for tensor in inputs} == {torch.bfloat16}


def test_adapters_of_a_float16_model_compute_in_float32(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, dtype="float16")
    opened(base)
    kept = [tensor for tensor in kept_for_backward(base) if TOKENS in tensor.shape]
    assert torch.float32 in {tensor.dtype for tensor in kept}


def test_gradients_in_bfloat16_are_nearly_those_in_float32(model_dir: Path) -> None:
    gradients = {}
    for dtype in ("bfloat16", "float32"):
        base = tiny_model.load(model_dir, dtype=dtype)
        slot = opened(base)
        backward(base)
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
    backward(base)
    assert float(parameter.detach().flatten()[0]) == pytest.approx(1.0001)


def test_a_layer_uses_only_the_active_slot(model_dir: Path) -> None:
    base = tiny_model.load(model_dir)
    plain = logits(base)
    few = AdapterShape(2, 4.0, ("q_proj",))
    first = base.open("a", tiny_model.MODEL, few, 0)
    second = base.open("b", tiny_model.MODEL, tiny_model.SHAPE, 1)
    fill(first)
    base.activate(first)
    with_first = logits(base)
    assert not torch.equal(with_first, plain)
    # The second adapter is still zero, also in layers for which the first has none.
    base.activate(second)
    assert torch.equal(logits(base), plain)
    fill(second)
    base.activate(first)
    assert torch.equal(logits(base), with_first)
    backward(base)
    assert all(parameter.grad is None for parameter in second.parameters.values())


def test_closing_a_slot_frees_its_adapter(model_dir: Path) -> None:
    base = tiny_model.load(model_dir)
    plain = logits(base)
    slot = opened(base)
    tensors = [weakref.ref(parameter) for parameter in slot.parameters.values()]
    base.close("a")
    del slot
    gc.collect()
    assert [tensor for tensor in tensors if tensor() is not None] == []
    assert torch.equal(logits(base), plain)


def test_a_layer_has_the_weights_of_its_base_layer(model_dir: Path) -> None:
    base = tiny_model.load(model_dir)
    weight = base.model.model.layers[0].mlp.down_proj.weight
    opened(base)
    layer = base.model.model.layers[0].mlp.down_proj
    assert isinstance(layer, AdapterLayer)
    assert layer.weight is weight
    assert layer.bias is None
    assert (layer.in_features, layer.out_features) == tuple(reversed(weight.shape))
