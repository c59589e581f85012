"""Families of models: each one is trained with exact probabilities, and what cannot be is refused with the reason."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rlrun.protocol.train_batch import Sample
from rlrun.service.errors import ProblemError
from rlrun_trainer.artifacts.checkpoint_names import stored_weights
from rlrun_trainer.model.adapter_targets import WITHOUT_ADAPTERS, linear_layers
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.peft_format import NAME_PREFIX, AdapterShape
from rlrun_trainer.optimization.step import StepPlan, train_step
from safetensors.torch import load_file, save_file

from tests.support import model_families, tiny_model
from tests.support.model_families import FAMILIES

PLAN = StepPlan(learning_rate=1e-3, micro_batch_tokens=160, max_grad_norm=1e9)
LENGTHS = (40, 12, 16, 10, 36, 20, 14, 11)
"""Lengths of the samples, so that some share a row."""
ROUNDING = 1e-6
"""Largest KL divergence of a token, in nats, between a batch and each sample alone."""
ONE_SAMPLE_PER_ROW = frozenset(
    {
        "llama4_text", "llama4", "deepseek_v4", "minimax_m3_vl", "gpt_oss", "qwen3_next", "lfm2", "falcon_h1", "bamba",
        "nemotron_h", "granitemoehybrid", "kimi_linear", "qwen3_5", "qwen3_5_moe", "qwen2_5_vl", "glm46v",
    }
)  # fmt: skip


def load(folder: Path, family: str, **settings: Any) -> BaseModel:
    return tiny_model.load(model_families.save_family(folder, family), slots=1, **settings)


def opened(base: BaseModel, *targets: str) -> AdapterSlot:
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, targets or ("all-linear",)), 1)
    base.activate(slot)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return slot


@contextmanager
def as_served(base: BaseModel) -> Iterator[None]:
    """Compute as engines do, in evaluation mode, whatever mode the trainer has chosen for each module."""
    modes = {module: module.training for module in base.model.modules()}
    base.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def sampled(base: BaseModel, lengths: Sequence[int] = LENGTHS) -> list[Sample]:
    """Samples with the log-probabilities that the model gives each of them alone."""
    made = []
    generator = torch.Generator().manual_seed(0)
    for number, length in enumerate(lengths):
        ids = torch.randint(3, 60, (length,), generator=generator).tolist()
        mask = [position >= 4 for position in range(length)]
        bare = Sample(
            token_ids=ids, loss_mask=mask, logprobs=[0.0] * length, advantage=(-1.0) ** number, policy_version=0
        )
        with as_served(base):
            found = [0.0, *tiny_model.plain_logprobs(base, bare).tolist()]
        logprobs = [min(value, 0.0) if trained else 0.0 for value, trained in zip(found, mask, strict=True)]
        made.append(replace(bare, logprobs=logprobs))
    return made


@pytest.fixture
def adapters_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open adapters of families that no engine serves: their probabilities must be exact for training all weights."""
    monkeypatch.setattr("rlrun_trainer.model.adapter_targets.WITHOUT_ADAPTERS", frozenset())


@pytest.mark.usefixtures("adapters_of_all")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_trained_with_exact_probabilities_in_every_layer(tmp_path: Path, family: str) -> None:
    base = load(tmp_path, family, gradient_checkpointing="on")
    slot = opened(base)
    layers = {name.removeprefix(NAME_PREFIX).rpartition(".lora_")[0] for name in slot.parameters}
    assert {f"{layer}.weight" for layer in layers} <= set(stored_weights(tmp_path)), "names as engines read them"
    before = {name: parameter.detach().clone() for name, parameter in slot.parameters.items()}
    metrics = train_step(base, slot, sampled(base), PLAN)
    assert metrics["mismatch_kl/all/max"] <= ROUNDING
    assert metrics["optim/grad_norm"] > 1e-3
    assert base.shares_rows == (family not in ONE_SAMPLE_PER_ROW)
    assert (metrics["batch/samples_per_row"] > 1.2) == base.shares_rows
    untrained = [name for name, parameter in slot.parameters.items() if torch.equal(parameter.detach(), before[name])]
    assert slot.warnings == []
    assert untrained == []


@pytest.mark.parametrize(
    ("family", "target", "words"),
    [
        ("deepseek_v32", "indexer.wk", "chooses tokens for sparse attention"),
        ("glm_moe_dsa", "weights_proj", "chooses tokens for sparse attention"),
        ("deepseek_v4", "o_a_proj", "a DeepseekV4GroupedLinear, which adapters do not support"),
        ("deepseek_v4", "compressor.kv_proj", "which bypass its adapter"),
        ("mistral4", "shared_experts.down_proj", "lists inside the routed experts"),
        ("mistral4", "experts", "store in a form for which vLLM accepts no adapter"),
        ("glm4", "gate_up_proj", "accepts only separate adapters"),
        ("llama4_text", "q_proj", "whose rows vLLM reorders"),
        ("llama4_text", "experts", "a non-standard computation"),
        ("llama4", "k_proj", "whose rows vLLM reorders"),
        ("gemma4_text", "layers.1.self_attn.k_proj", "for the keys only"),
        ("qwen3_vl", "qkv", "not a layer of the language model"),
    ],
)
def test_a_layer_that_cannot_be_trained_or_served_is_refused_with_the_reason(
    tmp_path: Path, family: str, target: str, words: str
) -> None:
    base = load(tmp_path, family)
    with pytest.raises(ProblemError, match=words) as caught:
        opened(base, target)
    assert caught.value.problem.reason == "AdapterInvalid"


@pytest.mark.parametrize("family", sorted(WITHOUT_ADAPTERS))
def test_a_family_without_adapters_in_the_engine_is_refused_by_name(tmp_path: Path, family: str) -> None:
    base = load(tmp_path, family)
    with pytest.raises(ProblemError, match=f"vLLM 0.32 serves no adapters .* {family}") as caught:
        opened(base)
    assert caught.value.problem.reason == "AdapterInvalid"


@pytest.mark.usefixtures("adapters_of_all")
def test_blocks_longer_than_the_rows_of_the_check_do_not_mix_samples(tmp_path: Path) -> None:
    folder = model_families.save_family(tmp_path, "minimax_m3_vl", index_block_size=64, index_topk_blocks=1)
    base = tiny_model.load(folder, slots=1)
    slot = opened(base)
    samples = sampled(base, (200, 100, 90, 80, 70))
    metrics = train_step(base, slot, samples, replace(PLAN, micro_batch_tokens=800))
    assert metrics["mismatch_kl/all/max"] <= ROUNDING


def test_layers_without_a_gradient_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The planted mistake: layers of the indexer, which compute without gradients, are not refused.
    monkeypatch.setattr("rlrun_trainer.model.adapter_targets.INDEXER", None)
    base = load(tmp_path, "deepseek_v32")
    layers = linear_layers(base.model, base.loader.names, joined=False)
    indexer = [name for name in layers.served if ".indexer." in name]
    slot = opened(base)
    equal_rewards = [replace(s, advantage=0.0) for s in sampled(base)]
    train_step(base, slot, equal_rewards, PLAN)
    assert slot.warnings == [], "a step without a gradient shows nothing"
    for _ in range(2):
        train_step(base, slot, sampled(base), PLAN)
    (warning,) = slot.warnings
    assert warning.reason == "AdapterWithoutGradient"
    assert (
        f"{len(indexer)} of {len(slot.parameters) // 2} layers with an adapter received no gradient" in warning.message
    )
    assert "model.layers.0.self_attn.indexer." in warning.message


def test_a_new_adapter_trains_every_layer_in_its_first_step(base: BaseModel) -> None:
    # Half of its tensors have no gradient in this step, because the other half is zero.
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, ("all-linear",)), 1)
    train_step(base, slot, tiny_model.samples(8), PLAN)
    assert slot.warnings == []


def test_a_family_without_sdpa_is_computed_by_what_it_has(tmp_path: Path) -> None:
    folder = model_families.save_family(tmp_path, "gpt_oss")
    assert tiny_model.load(folder).loader.attention == "eager"
    with pytest.raises(ProblemError, match=r"GptOssForCausalLM \(model_type gpt_oss\): ValueError") as caught:
        tiny_model.load(folder, attention="sdpa")
    assert caught.value.problem.reason == "ModelUnsupported"


def test_weights_that_the_files_lack_are_named(model_dir: Path, tmp_path: Path) -> None:
    for file in model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ProblemError, match=f"weights that the files do not contain: 1, such as {name}") as caught:
        tiny_model.load(tmp_path)
    assert caught.value.problem.reason == "ModelUnsupported"


def test_any_failure_of_a_check_has_family_and_cause(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> torch.Tensor:
        raise AttributeError("no last_hidden_state")

    monkeypatch.setattr(BaseModel, "hidden_states", broken)
    with pytest.raises(ProblemError, match="AttributeError: no last_hidden_state") as caught:
        tiny_model.load(model_dir)
    assert caught.value.problem.reason == "ModelUnsupported"
    assert "Qwen3ForCausalLM (model_type qwen3)" in caught.value.problem.message


def test_a_damaged_file_is_no_property_of_the_family(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ProblemError) as caught:
        tiny_model.load(tmp_path)
    assert caught.value.problem.reason == "ModelLoadFailed"
