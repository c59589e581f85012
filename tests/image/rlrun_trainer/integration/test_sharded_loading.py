"""Two processes that share a model read and publish their parts of its weights, and hold the same model as one."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from rlrun.service.errors import ProblemError
from rlrun_trainer.artifacts.checkpoint_names import stored_weights
from rlrun_trainer.model import loader, sharding
from rlrun_trainer.model.decoder import DECODE, decode
from rlrun_trainer.model.loader import Loader, load_weights, shapes_of
from rlrun_trainer.model.loading_rules import LoadingRules
from rlrun_trainer.process import exit_with
from rlrun_trainer.runtime.process_group import full_tensor, init_process_group
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.torch_backend import full_weights
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3MoeConfig

from tests.support import model_families, tiny_model
from tests.support.model_families import FAMILIES
from tests.support.ports import claimed_ports

READ_WHOLE = frozenset({"kimi_linear", "kimi_k25", "qwen3_vl_moe", "minimax_m3_vl"})
"""Families whose weights transformers converts along the first dimension."""
TIED = ("tied", "untied in the files")
MODES = ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True))
"""Precision of computation, and whether all weights are trained."""
MIB = 2**20
Work = Callable[[Path, dict[str, Any]], None]


def run(work: Work, folder: Path, size: int = 2) -> list[dict[str, Any]]:
    """Return the results of `work`, by rank, in processes that form one process group."""
    with claimed_ports(1) as (port,):
        torch.multiprocessing.spawn(_run, (size, port, work, folder), size)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def _run(rank: int, size: int, port: int, work: Work, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    result: dict[str, Any] = {}
    work(folder, result)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    torch.distributed.destroy_process_group()
    # Like the trainer's processes, which do not finalize the interpreter while threads of torch exist.
    exit_with(0)


def compare_all(folder: Path, result: dict[str, Any]) -> None:
    """Write what differs between the model of both processes and the model of one, for each folder and mode."""
    world = init_process_group("cpu")
    real = loader.shard
    early = []

    def recorded(model: Any, *arguments: Any) -> None:
        early.append(next(model.parameters()).is_meta)
        real(model, *arguments)

    loader.shard = recorded
    for stored in sorted(each for each in folder.iterdir() if each.is_dir()):
        config = AutoConfig.from_pretrained(stored)
        for dtype, trainable in MODES:
            early.clear()
            name = str(dtype).removeprefix("torch.")
            settings = TrainerSettings(model_dir=stored, device="cpu", threads=1, dtype=name, attention="eager")
            divided = Loader(settings, world)
            model = divided.load(trainable)
            kept = torch.float32 if trainable else dtype
            whole = load_weights(stored, config, kept, divided.attention)
            found = {key: full_tensor(value) for key, value in tensors_of(model).items()}
            wanted = tensors_of(whole)
            differ = [
                key
                for key in wanted.keys() | found.keys()
                if key not in found
                or key not in wanted
                or found[key].dtype != wanted[key].dtype
                or not torch.equal(found[key], wanted[key])
            ]
            held = sum(parameter.to_local().numel() for parameter in model.parameters())
            all_held = sum(parameter.numel() for parameter in model.parameters())
            ids, positions = torch.arange(3, 15)[None], torch.arange(12)[None]
            with torch.no_grad():
                states, expected = getattr(model, DECODE)(ids, positions), decode(whole, ids, positions)
            model.unshard()
            result[f"{stored.name} {name} {trainable}"] = {
                "tied": [
                    one.get_input_embeddings().weight is one.get_output_embeddings().weight for one in (model, whole)
                ],
                "differ": differ,
                "early": list(early),
                "held": held / all_held,
                "error": float((states - expected).abs().max()),
            }


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    """Return all weights and buffers, also those that are not stored."""
    return {**model.state_dict(), **dict(model.named_buffers())}


def untie(folder: Path) -> None:
    """Give the files an own head that differs from the embeddings, although the configuration ties them."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        model_families.save_family(folder / family, family)
    for name in TIED:
        tiny_model.save_model(folder / name)
    untie(folder / TIED[1])
    return run(compare_all, folder)


@pytest.mark.parametrize("family", [*FAMILIES, *TIED])
def test_two_processes_hold_the_model_of_one(compared: list[dict[str, Any]], family: str) -> None:
    for rank, result in enumerate(compared):
        for dtype, trainable in MODES:
            one = result[f"{family} {str(dtype).removeprefix('torch.')} {trainable}"]
            assert one["differ"] == []
            assert one["error"] == 0 or dtype != torch.float32
            assert one["tied"] in ([True, True], [False, False])
            assert one["early"] == [family not in READ_WHOLE and family != TIED[1]]
            assert one["held"] < 0.7, rank


def measure(folder: Path, result: dict[str, Any]) -> None:
    """Write the peak of this process's anonymous memory while the model loads, in models."""
    world = init_process_group("cpu")
    settings = TrainerSettings(model_dir=folder, device="cpu", threads=1, dtype="float32")
    with peak_memory(result, sum(file.stat().st_size for file in folder.glob("*.safetensors"))):
        model = Loader(settings, world).load()
    assert sharding.is_sharded(model)


def measure_policy(folder: Path, result: dict[str, Any]) -> None:
    """Write the peak of this process's anonymous memory while a policy in bfloat16 is written, in policies."""
    world = replace(init_process_group("cpu"), local_size=2)
    base = tiny_model.load(folder, world=world, scratch=folder / "scratch")
    slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
    with peak_memory(result, sum(2 * parameter.numel() for parameter in slot.parameters.values())):
        full_weights.write_model(base, slot, torch.bfloat16)


@contextmanager
def peak_memory(result: dict[str, Any], size: int) -> Iterator[None]:
    """Write how much this process's anonymous memory grows, in models of `size` bytes."""
    before, peak, done = _anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, _anonymous())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    done.set()
    watcher.join()
    result["models"] = (peak - before) / size


def _anonymous() -> int:
    status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
    return int(status.split()[0]) * 1024


def _config(kind: str) -> Any:
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
    small = {"hidden_size": 512, "num_hidden_layers": 12, "vocab_size": 8192, "tie_word_embeddings": False, **heads}
    if kind == "dense":
        return Qwen3Config(**small, intermediate_size=4096)
    return Qwen3MoeConfig(**small, num_experts=32, moe_intermediate_size=128)


@pytest.mark.parametrize("work", [measure, measure_policy])
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_each_process_needs_memory_for_its_half_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, work: Work
) -> None:
    # The allocator returns memory of these tensors at once, as it does for those of large models.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(MIB // 16))
    with torch.device("cpu"):
        AutoModelForCausalLM.from_config(_config(kind)).save_pretrained(tmp_path, max_shard_size="64MB")
    peaks = [one["models"] for one in run(work, tmp_path)]
    print(f"anonymous memory while loading or publishing, in models: {peaks}")
    assert sum(peaks) / 2 <= 0.65
    assert max(peaks) <= 0.75


def rules_and_shapes(folder: Path, family: str, **changes: Any) -> tuple[LoadingRules, dict[str, list[int]]]:
    """Return the rules for a model without memory, and the shapes of its weights in files."""
    model_families.save_family(folder, family, **changes)
    with torch.device("meta"):
        rules = LoadingRules(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)))
    return rules, shapes_of(folder, stored_weights(folder))


@pytest.mark.parametrize(
    ("experts", "processes", "allowed"), [(4, 4, True), (5, 4, False), (4, 8, False), (10, 4, True)]
)
def test_no_process_may_be_without_experts(tmp_path: Path, experts: int, processes: int, allowed: bool) -> None:
    rules, shapes = rules_and_shapes(tmp_path, "qwen3_moe", num_experts=experts, num_local_experts=experts)
    assert rules.allow_parts(shapes, processes) == allowed


EXPERT = "model.layers.1.mlp.experts.1.up_proj.weight"
EXTRA = {f"model.layers.4.mlp.experts.0.{name}_proj.weight": [16, 64] for name in ("gate", "up")}
"""Experts of a layer that predicts several tokens, which transformers does not load."""


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        (EXTRA, True),
        ({"mtp.layers.0.mlp.experts.0.down_proj.weight": [64, 16]}, True),
        ({EXPERT: None}, False),
        ({"model.norm.weight": None}, False),
        ({"model.embed_tokens.weight": [63, 64]}, False),
        ({"model.layers.0.self_attn.k_proj.weight": [64, 32]}, False),
        ({EXPERT: [16, 63]}, False),
    ],
)
def test_parts_are_read_of_exactly_the_models_weights(tmp_path: Path, changes: dict[str, Any], allowed: bool) -> None:
    rules, shapes = rules_and_shapes(tmp_path, "qwen3_moe")
    assert rules.allow_parts(shapes, 2)
    changed = {name: shape for name, shape in {**shapes, **changes}.items() if shape is not None}
    assert rules.allow_parts(changed, 2) == allowed
    assert not rules.allow_parts({}, 2)


def test_quantized_weights_are_read_whole(tmp_path: Path) -> None:
    rules, shapes = rules_and_shapes(tmp_path, "qwen3")
    rules._model.config.quantization_config = {"quant_method": "fp8"}
    assert not rules.allow_parts(shapes, 2)


def test_an_error_while_reading_leaves_transformers_as_it_was(tmp_path: Path) -> None:
    folder = model_families.save_family(tmp_path, "qwen3")
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ProblemError, match="Could not load the model") as caught:
        tiny_model.load(folder)
    assert caught.value.problem.reason == "ModelLoadFailed"
    assert "maybe_distribute_model" not in vars(PreTrainedModel)
