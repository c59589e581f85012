"""Adapters of routed experts compute what merged weights would, in every family."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from rlrun.protocol.train_batch import SampleLoss
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.expert_layer import ExpertLayer
from rlrun_trainer.model.peft_format import NAME_PREFIX, AdapterShape
from rlrun_trainer.optimization.step import StepPlan, train_step
from safetensors.torch import load, load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support import model_families, tiny_model
from tests.support.adapter_files import WITH_EXPERTS

PLAN = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=1.0)
RANK, ALPHA = 4, 8.0
JOINED = ("gpt_oss", "qwen3_vl_moe", "qwen3_5_moe")
IDS = torch.arange(60).view(3, 20)


def opened(base: BaseModel, name: str = "a", *, rank: int = RANK, dropout: float = 0.0, seed: int = 0) -> AdapterSlot:
    return base.open(name, tiny_model.MODEL, AdapterShape(rank, ALPHA, ("experts",), dropout), seed)


def with_random_weights(slot: AdapterSlot) -> AdapterSlot:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return slot


@contextmanager
def evaluated(base: BaseModel) -> Iterator[None]:
    base.model.eval()
    with torch.no_grad():
        yield


def logits(base: BaseModel) -> torch.Tensor:
    with evaluated(base):
        return base.model(input_ids=IDS.to(base.device)).logits.cpu()


def merge(folder: Path, adapter: dict[str, torch.Tensor]) -> None:
    """Add an adapter of single experts to the weights of the checkpoint, by the names in both files."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name, a in adapter.items():
        if ".lora_A." in name:
            target = name.removeprefix(NAME_PREFIX).replace(".lora_A", "")
            weights[target] = weights[target] + adapter[name.replace("lora_A", "lora_B")] @ a * (ALPHA / RANK)
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("family", sorted(set(WITH_EXPERTS) - set(JOINED)))
def test_an_adapter_equals_its_merge_into_the_weights_of_the_files(tmp_path: Path, family: str) -> None:
    folder = model_families.save_family(tmp_path, family)
    base = tiny_model.load(folder)
    plain = logits(base)
    slot = with_random_weights(opened(base))
    base.activate(slot)
    adapted = logits(base)
    merge(folder, load(slot.files()["adapter_model.safetensors"]))
    torch.testing.assert_close(logits(tiny_model.load(folder)), adapted, rtol=1e-4, atol=1e-4)
    assert (adapted - plain).abs().max() > 0.05


def test_an_adapter_of_joined_experts_equals_its_merge(tmp_path: Path) -> None:
    base = tiny_model.load(model_families.save_family(tmp_path, "gpt_oss"))
    slot = with_random_weights(opened(base))
    base.activate(slot)
    adapted = logits(base)
    tensors = load(slot.files()["adapter_model.safetensors"])
    base.close("a")
    with torch.no_grad():
        for number, layer in enumerate(base.model.model.layers):
            experts, module = layer.mlp.experts.base_layer, f"{NAME_PREFIX}model.layers.{number}.mlp.experts"
            for weights, name in ((experts.gate_up_proj, f"{module}.base_layer"), (experts.down_proj, module)):
                a, b = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
                for expert in range(4):
                    # As vLLM reads them: rows of A by expert, columns of B by rank.
                    product = b[:, expert::4] @ a[expert * RANK : (expert + 1) * RANK]
                    weights[expert] += product.T.to(weights.device) * (ALPHA / RANK)
    torch.testing.assert_close(logits(base), adapted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "deepseek_v3"])
def test_stock_peft_loads_an_adapter_of_experts_with_equal_logits(tmp_path: Path, family: str) -> None:
    base = tiny_model.load(model_families.save_family(tmp_path / "model", family))
    shape = AdapterShape(RANK, ALPHA, ("all-linear", "experts"))
    slot = with_random_weights(base.open("a", tiny_model.MODEL, shape, 0))
    base.activate(slot)
    for file, data in slot.files().items():
        (tmp_path / file).write_bytes(data)
    stock = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32), tmp_path
    )
    stock.eval()
    with torch.no_grad():
        theirs = stock(input_ids=IDS).logits
    torch.testing.assert_close(theirs, logits(base), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", [*WITH_EXPERTS, "qwen3_vl_moe", "qwen3_5_moe", "nemotron_h"])
def test_a_new_adapter_is_the_base_model_and_every_factor_learns(tmp_path: Path, family: str) -> None:
    base = tiny_model.load(model_families.save_family(tmp_path, family), gradient_checkpointing="on")
    plain = logits(base)
    slot = opened(base)
    base.activate(slot)
    assert torch.equal(logits(base), plain)
    before = {name: parameter.detach().clone() for name, parameter in slot.parameters.items()}
    samples = [replace(sample, loss=SampleLoss.cross_entropy) for sample in tiny_model.samples(8)]
    losses = [train_step(base, slot, samples, PLAN)["loss/mean"] for _ in range(3)]
    assert losses[-1] < losses[0]
    assert not any(torch.equal(parameter, before[name]) for name, parameter in slot.parameters.items())
    base.close("a")
    assert torch.equal(logits(base), plain)


def test_slots_with_and_without_adapters_of_experts_do_not_disturb_each_other(tmp_path: Path) -> None:
    folder = tiny_model.save_moe(tmp_path)
    attention = AdapterShape(4, 8.0, ("q_proj",))
    alone, shared = tiny_model.load(folder), tiny_model.load(folder)
    one, other = alone.open("one", tiny_model.MODEL, attention, 5), opened(shared)
    two = shared.open("two", tiny_model.MODEL, attention, 5)
    for seed in range(3):
        train_step(alone, one, tiny_model.samples(8, seed), PLAN)
        train_step(shared, other, tiny_model.samples(8, 9 - seed), PLAN)
        train_step(shared, two, tiny_model.samples(8, seed), PLAN)
    assert one.files() == two.files()


def test_recomputed_activations_give_the_same_adapter_also_with_dropout(tmp_path: Path) -> None:
    folder = tiny_model.save_moe(tmp_path)
    files = []
    for mode, dropout in (("off", 0.0), ("on", 0.0), ("off", 0.3), ("on", 0.3)):
        base = tiny_model.load(folder, gradient_checkpointing=mode)
        slot = opened(base, dropout=dropout)
        for seed in range(2):
            train_step(base, slot, tiny_model.samples(8, seed), PLAN)
        files.append(slot.files()["adapter_model.safetensors"])
    assert files[0] == files[1] != files[2] == files[3]


@pytest.mark.parametrize(("rank", "dtype"), [(1, "float32"), (3, "bfloat16"), (8, "bfloat16")])
def test_any_rank_and_precision_is_trained(tmp_path: Path, rank: int, dtype: str) -> None:
    base = tiny_model.load(tiny_model.save_moe(tmp_path), dtype=dtype)
    slot = opened(base, rank=rank)
    samples = [replace(sample, loss=SampleLoss.cross_entropy) for sample in tiny_model.samples(8)]
    losses = [train_step(base, slot, samples, PLAN)["loss/mean"] for _ in range(4)]
    assert losses[-1] < losses[0]
    assert {parameter.dtype for parameter in slot.parameters.values()} == {torch.float32}
    assert {parameter.shape[1 if ".lora_A." in name else 2] for name, parameter in slot.parameters.items()} == {rank}


def test_factors_of_an_expert_start_as_those_of_a_linear_layer(tmp_path: Path) -> None:
    slot = opened(tiny_model.load(tiny_model.save_moe(tmp_path)))
    for name, parameter in slot.parameters.items():
        bound = parameter.shape[-1] ** -0.5
        largest = float(parameter.detach().abs().max())
        assert 0.9 * bound < largest <= bound if ".lora_A." in name else largest == 0


def test_weights_of_experts_are_neither_copied_nor_changed(tmp_path: Path) -> None:
    base = tiny_model.load(tiny_model.save_moe(tmp_path))
    weights = {id(parameter): parameter.detach().clone() for parameter in base.model.parameters()}
    slot = opened(base)
    for seed in range(2):
        train_step(base, slot, tiny_model.samples(8, seed), PLAN)
    layers = [module for module in base.model.modules() if isinstance(module, ExpertLayer)]
    assert len(layers) == 2
    for layer in layers:
        for parameter in layer.base_layer.parameters():
            assert torch.equal(parameter, weights[id(parameter)])
            assert not parameter.requires_grad
