"""Layers that an adapter gets: those that the trainer trains and vLLM serves, experts if they are named, no routers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from rlrun.api.model import Lora
from rlrun.protocol.train_batch import SampleLoss
from rlrun.service.errors import ProblemError
from rlrun_trainer.model.adapter_targets import LinearLayers, file_targets, missed_layers, resolve
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.optimization.step import StepPlan, train_step
from transformers import AutoModelForCausalLM

from tests.support import model_families, tiny_model

PLAN = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=1.0)
ATTENTION = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
MLP = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}
SHARED = {"gate_proj", "up_proj", "down_proj"}
DELTA_RULE = {f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")}
EXPECTED = {
    "qwen3": ATTENTION | MLP,
    "qwen3_moe": ATTENTION,
    "qwen3_next": ATTENTION
    | {f"mlp.shared_expert.{name}" for name in SHARED}
    | {"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba", "linear_attn.out_proj"},
    "qwen3_5": ATTENTION | MLP | DELTA_RULE,
    "lfm2": {f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    | {"conv.in_proj", "conv.out_proj", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"},
    "granitemoehybrid": ATTENTION | {"mamba.in_proj", "shared_mlp.input_linear", "shared_mlp.output_linear"},
    "gpt_oss": ATTENTION,
    "glm4_moe": ATTENTION | MLP | {f"mlp.shared_experts.{name}" for name in SHARED},
    "phimoe": ATTENTION,
}
OLD_DEFAULT = tiny_model.TARGETS


def load(folder: Path, name: str) -> BaseModel:
    if name == "qwen3":
        return tiny_model.load(tiny_model.save_model(folder))
    if name == "qwen3_moe":
        return tiny_model.load(tiny_model.save_moe(folder))
    return tiny_model.load(model_families.save_family(folder, name))


def opened(base: BaseModel, *targets: str, dropout: float = 0.0) -> AdapterSlot:
    return base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, targets, dropout), 0)


def layers_of(slot: AdapterSlot) -> set[str]:
    # base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight
    return {name.split(".layers.")[1].partition(".")[2].rsplit(".lora_", 1)[0] for name in slot.parameters}


@pytest.mark.proves("lora.targetModules")
@pytest.mark.parametrize("name", EXPECTED)
def test_all_linear_is_every_layer_that_can_be_served_and_no_router(tmp_path: Path, name: str) -> None:
    base = load(tmp_path, name)
    slot = opened(base, "all-linear")
    assert layers_of(slot) == EXPECTED[name]
    assert slot.warnings == []
    again = base.open("b", tiny_model.MODEL, AdapterShape(2, 2.0, ("all-linear",)), 1)
    assert again.parameters.keys() == slot.parameters.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_default_targets_train_every_architecture(tmp_path: Path, name: str) -> None:
    base = load(tmp_path, name)
    slot = opened(base, *Lora().target_modules)
    samples = [replace(s, loss=SampleLoss.cross_entropy) for s in tiny_model.samples(8)]
    losses = [train_step(base, slot, samples, PLAN)["loss/mean"] for _ in range(3)]
    assert losses[-1] < losses[0]
    assert all(float(p.detach().abs().max()) > 0 for p in slot.parameters.values())


@pytest.mark.parametrize(
    ("name", "targets", "words"),
    [
        ("qwen3_moe", OLD_DEFAULT, "gate_proj, up_proj, down_proj"),
        ("qwen3_moe", ("gate",), "gate"),
        ("granitemoehybrid", ("q_proj", "experts"), "experts: routed experts that the model's files store"),
        ("qwen3", ("experts",), "experts: not linear layers"),
        ("phimoe", ("router",), "router"),
        ("qwen3_next", ("shared_expert_gate",), "shared_expert_gate"),
        ("granitemoehybrid", ("mamba.out_proj",), "mamba.out_proj"),
        ("qwen3", ("no_such_proj",), "no_such_proj"),
        ("lfm2", ("gate_proj",), "gate_proj"),
    ],
)
def test_a_layer_that_gets_no_adapter_is_refused_by_name(
    tmp_path: Path, name: str, targets: tuple[str, ...], words: str
) -> None:
    base = load(tmp_path, name)
    with pytest.raises(ProblemError) as caught:
        opened(base, *targets)
    problem = caught.value.problem
    assert problem.reason == "AdapterInvalid"
    assert problem.message.startswith(f"`lora.targetModules` has {words}")
    assert "`all-linear`" in problem.message
    assert "q_proj" in problem.message
    if name in ("qwen3_moe", "phimoe"):
        assert "experts" in problem.message
    opened(base, "all-linear")


@pytest.mark.parametrize("name", ["qwen3_next", "glm4_moe"])
def test_named_layers_are_those_outside_of_the_experts(tmp_path: Path, name: str) -> None:
    base = load(tmp_path, name)
    slot = opened(base, "q_proj", "gate_proj", "up_proj", "down_proj")
    assert layers_of(slot) == {n for n in EXPECTED[name] if n.rsplit(".", 1)[-1] in SHARED | {"q_proj"}}


def test_a_longer_name_selects_the_layers_of_one_block(tmp_path: Path) -> None:
    base = load(tmp_path, "glm4_moe")
    assert layers_of(opened(base, "mlp.gate_proj")) == {"mlp.gate_proj"}
    base.close("a")
    assert layers_of(opened(base, "shared_experts.gate_proj")) == {"mlp.shared_experts.gate_proj"}


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        *(
            (name, dropout)
            for name in ("qwen3_moe", "qwen3_next", "glm4_moe", "granitemoehybrid")
            for dropout in (0, 0.2)
        ),
        *((name, 0) for name in ("hy_v3", "deepseek_v4", "nemotron_h")),
    ],
)
def test_stock_peft_loads_the_adapter_with_equal_logits(tmp_path: Path, name: str, dropout: float) -> None:
    base = load(tmp_path / "model", name)
    slot = opened(base, "all-linear", dropout=dropout)
    base.activate(slot)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.normal_(std=0.1)
    for file, data in slot.files().items():
        (tmp_path / file).write_bytes(data)
    stock = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32), tmp_path
    )
    stock.eval()
    base.model.eval()
    ids = torch.randint(tiny_model.VOCABULARY, (3, 20))
    with torch.no_grad():
        ours, theirs = base.model(input_ids=ids.to(base.device)).logits.cpu(), stock(input_ids=ids).logits
        with stock.disable_adapter():
            plain = stock(input_ids=ids).logits
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert (theirs - plain).abs().max() > 0.01


@pytest.mark.parametrize(("name", "left_out"), [("qwen3_5", "linear_attn"), ("qwen3_next", "linear_attn")])
def test_layers_left_out_by_the_old_default_cause_a_warning(tmp_path: Path, name: str, left_out: str) -> None:
    slot = opened(load(tmp_path, name), *OLD_DEFAULT)
    [warning] = slot.warnings
    assert warning.reason == "LoraTargetsIncomplete"
    assert f"{left_out} (in_proj" in warning.message
    assert "`all-linear`" in warning.message


def test_layers_of_a_model_with_one_kind_of_layers_may_be_left_out(base: BaseModel) -> None:
    assert opened(base, "q_proj", "v_proj").warnings == []


LAYERS = LinearLayers(
    served=tuple(f"m.layers.{i}.{leaf}" for i in (0, 1) for leaf in ("conv.in", "mlp.up", "mlp.down")),
    named=("lm_head",),
    routed=("m.layers.0.mlp.experts.gate_up_proj", "m.layers.0.mlp.experts.down_proj"),
    refused={"m.layers.0.mlp.router": "a router"},
    experts=True,
    kinds=2,
)


def test_names_select_by_the_end_of_the_full_name() -> None:
    assert resolve(("up",), LAYERS) == ("m.layers.0.mlp.up", "m.layers.1.mlp.up")
    assert resolve(("layers.1.mlp.up", "lm_head"), LAYERS) == ("lm_head", "m.layers.1.mlp.up")
    assert resolve(("all-linear", "up"), LAYERS) == tuple(sorted(LAYERS.served))


def test_only_their_name_selects_the_experts_and_it_selects_all_of_them() -> None:
    assert resolve(("experts",), LAYERS) == tuple(sorted(LAYERS.routed))
    assert resolve(("all-linear", "experts"), LAYERS) == tuple(sorted((*LAYERS.served, *LAYERS.routed)))
    with pytest.raises(ProblemError, match=r"has gate_up_proj: .*, and routed experts only by the name `experts`"):
        resolve(("up", "gate_up_proj"), LAYERS)


def test_missed_layers_are_counted_by_kind() -> None:
    assert missed_layers(("m.layers.0.mlp.up",), LAYERS) == {"conv": (("in",), 2), "mlp": (("down", "up"), 1)}


def test_names_in_files_match_no_other_layer() -> None:
    every = [*LAYERS.served, "m.vision.mlp.up", "m.layers.0.experts.gate_proj", "m.layers.0.shared.gate_proj"]
    chosen = ["m.layers.0.mlp.down", "m.layers.1.mlp.down", "m.layers.0.mlp.up", "m.layers.0.shared.gate_proj"]
    assert file_targets(chosen, every, True) == (["down", "m.layers.0.mlp.up"], ["shared.gate_proj.weight"])
    assert file_targets(chosen[-1:], every, False) == (["shared.gate_proj"], [])
