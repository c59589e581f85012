"""The plugin's LoRA against vLLM's own CPU wrapper and against the formula, inside the CPU engine's image."""

import pytest
import torch
from rlrun_inference.adapter_lora import LoraByAdapter
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.punica_wrapper.punica_selector import get_punica_wrapper

SLOTS, RANK, INPUTS, VOCABULARY = 3, 4, 6, 11
WIDTHS = (5, 2, 2)

MAPPINGS = {
    "one adapter": [7] * 6,
    "two adapters, one after the other": [7, 7, 7, 9, 9, 9],
    "two adapters, mixed": [7, 9, 7, 9, 9, 7],
    "adapter beside the base model": [0, 7, 0, 0, 7, 7],
    "base model alone": [0] * 6,
}
IN_SLOTS = [None, 9, 7]  # which adapter's id is in which slot; id 0 is the base model


def prepared(wrapper: type[PunicaWrapperCPU], ids: list[int], is_prefill: bool) -> PunicaWrapperCPU:
    made = wrapper(64, 64, torch.device("cpu"))
    mapping = LoRAMapping(index_mapping=tuple(ids), prompt_mapping=tuple(ids), is_prefill=is_prefill)
    made.update_metadata(mapping, IN_SLOTS, SLOTS, VOCABULARY)
    return made


def weights(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def linear(wrapper: PunicaWrapperCPU, y: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    a = tuple(weights(SLOTS, 1, RANK, INPUTS, seed=index, dtype=dtype) for index in range(3))
    b = tuple(weights(SLOTS, 1, width, RANK, seed=9 + index, dtype=dtype) for index, width in enumerate(WIDTHS))
    out = y.clone()
    wrapper.add_lora_linear(out, weights(len(y), INPUTS, seed=5, dtype=dtype), a, b, 0.5, WIDTHS)
    return out


@pytest.mark.parametrize("is_prefill", [True, False])
@pytest.mark.parametrize("name", MAPPINGS)
def test_each_row_gets_its_own_adapter(name: str, is_prefill: bool) -> None:
    ids = MAPPINGS[name]
    y = weights(len(ids), sum(WIDTHS), seed=3)
    x = weights(len(ids), INPUTS, seed=5)
    expected = y.clone()
    start = 0
    for index, width in enumerate(WIDTHS):
        a, b = weights(SLOTS, 1, RANK, INPUTS, seed=index), weights(SLOTS, 1, width, RANK, seed=9 + index)
        for row, adapter in enumerate(ids):
            if adapter:
                slot = IN_SLOTS.index(adapter)
                expected[row, start : start + width] += 0.5 * b[slot, 0] @ (a[slot, 0] @ x[row])
        start += width
    torch.testing.assert_close(linear(prepared(LoraByAdapter, ids, is_prefill), y), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name, ids in MAPPINGS.items() if 0 not in ids])
def test_linear_layers_are_as_vllms_own(name: str, dtype: torch.dtype) -> None:
    ids = MAPPINGS[name]
    y = weights(len(ids), sum(WIDTHS), seed=3, dtype=dtype)
    stock = linear(prepared(PunicaWrapperCPU, ids, False), y, dtype)
    # vLLM rounds the product before it adds it: in bfloat16 that is up to one unit in the last place of the sum.
    last_place = 2 * torch.finfo(dtype).eps * float(stock.abs().max())
    torch.testing.assert_close(linear(prepared(LoraByAdapter, ids, False), y, dtype), stock, rtol=0, atol=last_place)


@pytest.mark.parametrize("trained", [True, False], ids=["head trained", "head without weights"])
@pytest.mark.parametrize("padded", [VOCABULARY - 2, VOCABULARY, VOCABULARY + 3])
def test_logits_are_as_vllms_own(trained: bool, padded: int) -> None:
    ids = MAPPINGS["two adapters, mixed"]
    a = weights(SLOTS, 1, RANK, INPUTS, seed=1) * trained
    b = weights(SLOTS, 1, VOCABULARY, RANK, seed=2)
    results = []
    for wrapper in (LoraByAdapter, PunicaWrapperCPU):
        y = weights(len(ids), padded, seed=3)
        prepared(wrapper, ids, False).add_lora_logits(y, weights(len(ids), INPUTS, seed=5), a, b, 1.0)
        results.append(y)
    torch.testing.assert_close(*results)
    assert torch.equal(results[0], weights(len(ids), padded, seed=3)) is not trained


@pytest.mark.parametrize("trained", [True, False], ids=["embedding trained", "embedding without weights"])
def test_embeddings_are_as_vllms_own(trained: bool) -> None:
    ids = MAPPINGS["two adapters, mixed"]
    b = weights(SLOTS, 1, INPUTS, RANK, seed=2) * trained
    results = []
    for wrapper in (LoraByAdapter, PunicaWrapperCPU):
        y = weights(len(ids), INPUTS, seed=3)
        prepared(wrapper, ids, False).add_lora_embedding(y, weights(len(ids), RANK, seed=5), b)
        results.append(y)
    torch.testing.assert_close(*results)
    assert torch.equal(results[0], weights(len(ids), INPUTS, seed=3)) is not trained


def test_a_new_batch_replaces_the_groups_of_the_last() -> None:
    wrapper = prepared(LoraByAdapter, MAPPINGS["two adapters, mixed"], True)
    ids = [9, 0]
    wrapper.update_metadata(LoRAMapping(tuple(ids), tuple(ids), False), IN_SLOTS, SLOTS, VOCABULARY)
    y = weights(2, sum(WIDTHS), seed=3)
    assert torch.equal(linear(wrapper, y)[1], y[1])
    assert not torch.equal(linear(wrapper, y)[0], y[0])


def test_engine_loads_the_adapter() -> None:
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    assert type(get_punica_wrapper(64, 64, torch.device("cpu"))) is LoraByAdapter
