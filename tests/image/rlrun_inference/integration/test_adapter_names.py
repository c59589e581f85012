"""Names and shapes of the trainer's adapters against vLLM's own loader, inside the CPU engine's image.

vLLM loads an adapter with other names of layers, applies none of it, and logs that at debug. So each family's adapter
is loaded into a model of the family, and every number of its `lora_B` must be in the layers' buffers afterwards. No
token is computed: vLLM's kernels for experts with adapters run on GPUs only.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.layers import BaseLayerWithLoRA
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.model_executor.model_loader import get_model

from tests.support import model_families
from tests.support.adapter_files import RANK, Shapes, expected
from tests.support.ports import claimed_ports

FIELDS: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 16},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "hy_v3": {
        "first_k_dense_replace": 1, "expert_hidden_dim": 16, "route_norm": True, "enable_lm_head_fp32": False,
    },
    "minimax_m2": {"rotary_dim": 16, "scoring_func": "sigmoid"},
}  # fmt: skip
"""Fields that checkpoints of a family have and transformers does not write."""
ARCHITECTURES = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | {"phimoe": "PhiMoEForCausalLM", "mistral4": "Mistral4ForCausalLM"}
"""Architectures as the checkpoints of a family name them."""
EXPECTED = expected()
B = ".lora_B.weight"


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    """The group of one process that vLLM's layers need."""
    with claimed_ports(1) as (port,):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        yield
        destroy_model_parallel()
        destroy_distributed_environment()


def save_config(family: str, folder: Path) -> Path:
    config = model_families.config_of(family, **model_families.FAMILIES[family])
    config.architectures = [ARCHITECTURES[family]]
    config.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | FIELDS.get(family, {})))
    return folder


def save_adapter(folder: Path, shapes: Shapes) -> dict[str, torch.Tensor]:
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return tensors


def loaded(model: Path, adapter: Path) -> Mapping[str, BaseLayerWithLoRA]:
    """The layers of vLLM's model by name, after its LoRA manager has loaded and activated the adapter."""
    config = EngineArgs(
        model=str(model),
        load_format="dummy",
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=128,
        enable_lora=True,
        max_loras=1,
        max_lora_rank=8,
    ).create_engine_config()
    # Models with and without experts need other groups.
    destroy_model_parallel()
    with set_current_vllm_config(config):
        ensure_model_parallel_initialized(1, 1)
        made = get_model(vllm_config=config)
        manager = LRUCacheWorkerLoRAManager(config, torch.device("cpu"), made.embedding_modules)
        manager.create_lora_manager(made, config)
        manager.add_adapter(LoRARequest("policy", 1, str(adapter)))
    return manager._adapter_manager.modules


def buffers(layer: BaseLayerWithLoRA, *names: str) -> list[torch.Tensor]:
    found = [getattr(layer, name, ()) for name in names]
    return [tensor for value in found for tensor in ([value] if isinstance(value, torch.Tensor) else value)]


def size(tensors: Any) -> float:
    return math.fsum(float(tensor.double().square().sum()) for tensor in tensors)


def served_size(layers: Mapping[str, BaseLayerWithLoRA]) -> float:
    """Sum of the squares of all factors B that the engine would compute with."""
    tensors = []
    for layer in layers.values():
        # In a layer of experts `lora_b_stacked` has views of the others.
        of_experts = buffers(layer, "w13_lora_b_stacked", "w2_lora_b_stacked")
        tensors += of_experts or buffers(layer, "lora_b_stacked")
    return size(tensors)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("family", EXPECTED)
def test_vllm_serves_every_tensor_of_an_adapter(tmp_path: Path, family: str) -> None:
    tensors = save_adapter(tmp_path / "adapter", EXPECTED[family])
    layers = loaded(save_config(family, tmp_path), tmp_path / "adapter")
    written = size(tensor for name, tensor in tensors.items() if name.endswith(B))
    assert served_size(layers) == pytest.approx(written, rel=1e-9)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("family", "name", "other"),
    [
        # Names of layers that the model does not have: vLLM ignores them.
        ("qwen3", "layers.1.self_attn.q_proj", "layers.9.self_attn.q_proj"),
        ("gpt_oss", "layers.1.mlp.experts", "layers.9.mlp.experts"),
    ],
)
def test_a_tensor_with_another_name_is_found_missing(tmp_path: Path, family: str, name: str, other: str) -> None:
    shapes = {tensor.replace(name, other): shape for tensor, shape in EXPECTED[family].items()}
    assert shapes.keys() != EXPECTED[family].keys()
    tensors = save_adapter(tmp_path / "adapter", shapes)
    layers = loaded(save_config(family, tmp_path), tmp_path / "adapter")
    written = size(tensor for name, tensor in tensors.items() if name.endswith(B))
    assert served_size(layers) < 0.99 * written


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    ("family", "name", "other"),
    [("qwen3", "q_proj", "query"), ("qwen3_moe", "experts.1.gate_proj", "experts.1.gate"), ("mixtral", ".w2.", ".w4.")],
)
def test_an_unknown_projection_is_refused(tmp_path: Path, family: str, name: str, other: str) -> None:
    save_adapter(tmp_path / "adapter", {tensor.replace(name, other): s for tensor, s in EXPECTED[family].items()})
    with pytest.raises(ValueError, match="expected target modules"):
        loaded(save_config(family, tmp_path), tmp_path / "adapter")


@pytest.mark.usefixtures("process_group")
def test_joined_experts_are_served_in_the_order_that_the_trainer_writes(tmp_path: Path) -> None:
    tensors = save_adapter(tmp_path / "adapter", EXPECTED["gpt_oss"])
    layer = loaded(save_config("gpt_oss", tmp_path), tmp_path / "adapter")["model.layers.1.mlp.experts"]
    module = "base_model.model.model.layers.1.mlp.experts"
    for name, a, b in (
        (f"{module}.base_layer", layer.w13_lora_a_stacked, layer.w13_lora_b_stacked),
        (module, layer.w2_lora_a_stacked, layer.w2_lora_b_stacked),
    ):
        for expert in range(4):
            rows = slice(expert * RANK, (expert + 1) * RANK)
            assert torch.equal(a[0][0, expert, :RANK], tensors[f"{name}.lora_A.weight"][rows])
            assert torch.equal(b[0][0, expert, :, :RANK], tensors[f"{name}{B}"][:, expert::4])
