"""What stock tools make of our files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from rlrun.api.run_sections.training import KlPenalty
from rlrun.protocol.train_batch import SampleLoss
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import ADAPTER_WEIGHTS
from rlrun_trainer.artifacts.checkpoint_facts import REFERENCE, CheckpointProgress
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel, Reference
from rlrun_trainer.model.peft_format import CONFIG, AdapterShape, digest
from rlrun_trainer.optimization.step import StepPlan, train_step
from rlrun_trainer.torch_backend import checkpoint_format
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from tests.support import tiny_model

PLAN = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=1.0)


def assert_stock_peft_agrees(base: BaseModel, slot: AdapterSlot, model_dir: Path, folder: Path) -> None:
    """Stock peft has equal logits with the slot's files, and the adapter matters. `base` applies the slot."""
    for name, data in slot.files().items():
        (folder / name).write_bytes(data)
    stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32), folder)
    stock.eval()
    ids = torch.randint(tiny_model.VOCABULARY, (3, 20))
    with torch.no_grad():
        ours, theirs = base.model(input_ids=ids.to(base.device)).logits.cpu(), stock(input_ids=ids).logits
        with stock.disable_adapter():
            plain = stock(input_ids=ids).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert (theirs - plain).abs().max() > 0.01


def test_stock_peft_loads_the_adapter_with_equal_logits(base: BaseModel, model_dir: Path, tmp_path: Path) -> None:
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    for seed in range(3):
        train_step(base, slot, tiny_model.samples(8, seed), PLAN)
    assert_stock_peft_agrees(base, slot, model_dir, tmp_path)


def test_adapter_config_has_the_fields_that_engines_read(base: BaseModel) -> None:
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 12.5, ("q_proj", "v_proj")), 0)
    config = json.loads(slot.files()[CONFIG])
    assert config["r"] == 4
    assert config["lora_alpha"] == 12.5
    assert config["peft_type"] == "LORA"
    assert config["task_type"] == "CAUSAL_LM"
    assert sorted(config["target_modules"]) == ["q_proj", "v_proj"]
    assert config["base_model_name_or_path"] == tiny_model.MODEL
    assert config["bias"] == "none"


def test_version_zero_depends_on_the_seed_alone(model_dir: Path) -> None:
    first, second = tiny_model.load(model_dir), tiny_model.load(model_dir)
    torch.manual_seed(123)
    second.open("other", tiny_model.MODEL, AdapterShape(2, 2.0, ("q_proj",)), 9)
    one = first.open("a", tiny_model.MODEL, tiny_model.SHAPE, 7).files()
    two = second.open("b", tiny_model.MODEL, tiny_model.SHAPE, 7).files()
    assert digest(one) == digest(two)
    second.close("other")
    assert digest(second.open("c", tiny_model.MODEL, tiny_model.SHAPE, 8).files()) != digest(one)
    assert one[ADAPTER_WEIGHTS] == two[ADAPTER_WEIGHTS]


def test_adapters_are_published_in_the_models_precision_and_saved_in_float32(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, dtype="bfloat16")
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    train_step(base, slot, tiny_model.samples(8), PLAN)
    published = CollectiveExecutor(base).policy_files("a")
    saved = checkpoint_format.snapshot(base, slot, CheckpointProgress(1, "uid", {}))
    assert isinstance(published, dict)
    assert isinstance(saved, dict)
    assert published[CONFIG] == saved[CONFIG]
    exact, rounded = load(saved[ADAPTER_WEIGHTS]), load(published[ADAPTER_WEIGHTS])
    assert {tensor.dtype for tensor in exact.values()} == {torch.float32}
    assert rounded.keys() == exact.keys()
    assert all(torch.equal(rounded[name], tensor.bfloat16()) for name, tensor in exact.items())
    assert sum(tensor.nbytes for tensor in rounded.values()) * 2 == sum(tensor.nbytes for tensor in exact.values())


def test_version_zero_is_the_base_model(base: BaseModel) -> None:
    ids = torch.randint(tiny_model.VOCABULARY, (1, 10), device=base.device)
    with torch.no_grad():
        plain = base.model(input_ids=ids).logits
        base.activate(base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0))
        assert torch.equal(base.model(input_ids=ids).logits, plain)


def test_slots_do_not_disturb_each_other(model_dir: Path) -> None:
    alone = tiny_model.load(model_dir, slots=1)
    single = alone.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    for step in range(4):
        train_step(alone, single, tiny_model.samples(12, step), PLAN)
    shared = tiny_model.load(model_dir, slots=2)
    one = shared.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    two = shared.open("b", tiny_model.MODEL, AdapterShape(8, 32.0, ("q_proj", "down_proj")), 5)
    for step in range(4):
        train_step(shared, two, tiny_model.samples(9, 100 + step), PLAN)
        train_step(shared, one, tiny_model.samples(12, step), PLAN)
        if step == 2:
            shared.close("b")
            two = shared.open("c", tiny_model.MODEL, AdapterShape(2, 1.0, ("o_proj",), dropout=0.5), 5)
    assert one.files() == single.files()


def test_slots_are_limited_and_come_back(base: BaseModel) -> None:
    base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    base.open("b", tiny_model.MODEL, tiny_model.SHAPE, 0)
    with pytest.raises(ProblemError) as caught:
        base.open("c", tiny_model.MODEL, tiny_model.SHAPE, 0)
    assert caught.value.problem.reason == "NoFreeSlot"
    base.close("a")
    base.close("a")
    base.close("b")
    base.open("c", tiny_model.MODEL, tiny_model.SHAPE, 0)


def test_unknown_target_modules_are_refused_and_the_slot_stays_free(base: BaseModel) -> None:
    for _ in range(3):
        with pytest.raises(ProblemError, match="no_such_proj") as caught:
            base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, ("no_such_proj",)), 0)
        assert caught.value.problem.reason == "AdapterInvalid"
    base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)


def test_all_linear(base: BaseModel) -> None:
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, ("all-linear",)), 0)
    layers = {name.split(".")[-3] for name in slot.parameters}
    assert layers == set(tiny_model.TARGETS)


def test_only_the_adapter_learns(base: BaseModel) -> None:
    before = {n: p.clone() for n, p in base.model.named_parameters() if "lora_" not in n}
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    train_step(base, slot, tiny_model.samples(8), PLAN)
    after = {n.replace(".base_layer", ""): p for n, p in base.model.named_parameters() if "lora_" not in n}
    assert all(torch.equal(after[n], p) for n, p in before.items())
    assert all(p.dtype == torch.float32 for p in slot.parameters.values())


def test_bfloat16_base_with_float32_adapter_learns(model_dir: Path) -> None:
    base = tiny_model.load(model_dir, dtype="bfloat16", gradient_checkpointing="on")
    assert next(base.model.parameters()).dtype == torch.bfloat16
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    before = slot.files()
    train_step(base, slot, tiny_model.samples(8), PLAN)
    assert slot.files() != before
    assert {p.dtype for p in slot.parameters.values()} == {torch.float32}


def test_recomputed_activations_give_the_same_gradient(model_dir: Path) -> None:
    files = []
    for mode in ("off", "on"):
        base = tiny_model.load(model_dir, gradient_checkpointing=mode)
        assert base.model.is_activation_checkpointing == (mode == "on")
        slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
        train_step(base, slot, tiny_model.samples(8), PLAN)
        files.append(slot.files())
    assert files[0] == files[1]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match=r"contains no config\.json"):
        tiny_model.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ProblemError, match=r"ModelUnsupported: .*\(model_type no-such-model\): ValueError"):
        tiny_model.load(tmp_path)


@pytest.mark.proves("lora.targetModules")
@pytest.mark.parametrize(
    ("targets", "layers"),
    [(("q_proj",), {"q_proj"}), (("o_proj", "down_proj"), {"o_proj", "down_proj"})],
)
def test_target_modules_choose_the_layers(base: BaseModel, targets: tuple[str, ...], layers: set[str]) -> None:
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, targets), 0)
    assert {name.split(".")[-3] for name in slot.parameters} == layers
    assert len(slot.parameters) == 2 * 2 * len(layers)
    before = {name: p.clone() for name, p in slot.parameters.items()}
    for seed in range(2):
        train_step(base, slot, tiny_model.samples(8, seed), PLAN)
    assert not any(torch.equal(p, before[name]) for name, p in slot.parameters.items())


@pytest.mark.proves("lora.rank")
@pytest.mark.parametrize("rank", [1, 2])
def test_a_run_may_have_a_rank_of_its_own(base: BaseModel, rank: int) -> None:
    base.open("other", tiny_model.MODEL, tiny_model.SHAPE, 0)
    slot = base.open("a", tiny_model.MODEL, AdapterShape(rank, 8.0, tiny_model.TARGETS), 0)
    assert {min(p.shape) for p in slot.parameters.values()} == {rank}
    assert json.loads(slot.files()[CONFIG])["r"] == rank


@pytest.mark.proves("loraAlpha")
def test_alpha_scales_what_an_adapter_adds(base: BaseModel) -> None:
    # B is zero at first, so the forward pass is the same for both, and B's gradient is proportional to the scale.
    norms = []
    for alpha in (8.0, 24.0):
        slot = base.open(f"alpha-{alpha}", tiny_model.MODEL, AdapterShape(4, alpha, tiny_model.TARGETS), 0)
        norms.append(train_step(base, slot, tiny_model.samples(8, 0), PLAN)["optim/grad_norm"])
        base.close(f"alpha-{alpha}")
    assert norms[1] == pytest.approx(3 * norms[0], rel=1e-4)


@pytest.mark.proves("lora.dropout", "seed")
def test_dropout_changes_the_gradient_and_follows_the_seed(model_dir: Path) -> None:
    def learned(dropout: float, seed: int) -> bytes:
        base = tiny_model.load(model_dir)
        slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, tiny_model.TARGETS, dropout), 0)
        slot.rng = base.open("b", tiny_model.MODEL, tiny_model.SHAPE, seed).rng
        for step in range(2):
            train_step(base, slot, tiny_model.samples(8, step), PLAN)
        return slot.files()[ADAPTER_WEIGHTS]

    assert learned(0.3, 1) == learned(0.3, 1)
    assert len({learned(0.3, 1), learned(0.3, 2), learned(0.1, 1), learned(0.0, 1)}) == 4
    assert learned(0.0, 1) == learned(0.0, 2)


def test_dropout_goes_on_from_a_checkpoint_where_it_was(model_dir: Path, tmp_path: Path) -> None:
    shape = AdapterShape(4, 8.0, tiny_model.TARGETS, dropout=0.3)
    base = tiny_model.load(model_dir)
    slot = base.open("a", tiny_model.MODEL, shape, 0)
    train_step(base, slot, tiny_model.samples(8, 0), PLAN)
    files = checkpoint_format.snapshot(base, slot, CheckpointProgress(1, "uid", {}))
    assert isinstance(files, dict)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    train_step(base, slot, tiny_model.samples(8, 1), PLAN)
    again = base.open("b", tiny_model.MODEL, shape, 99)
    checkpoint_format.restore(base, again, tmp_path)
    train_step(base, again, tiny_model.samples(8, 1), PLAN)
    assert again.files() == slot.files()


def compared(base: BaseModel, shape: AdapterShape = tiny_model.SHAPE) -> tuple[AdapterSlot, dict[str, bytes]]:
    """A slot after a demonstration and two steps with a KL penalty, and its checkpoint."""
    slot = base.open("a", tiny_model.MODEL, shape, 0)
    plan = replace(PLAN, kl_penalty=KlPenalty())
    demonstrations = [replace(s, loss=SampleLoss.cross_entropy) for s in tiny_model.samples(8)]
    train_step(base, slot, demonstrations, plan)
    for seed in range(2):
        train_step(base, slot, tiny_model.samples(8, seed), plan)
    files = checkpoint_format.snapshot(base, slot, CheckpointProgress(3, "uid", {}))
    assert isinstance(files, dict)
    return slot, files


def restored(base: BaseModel, folder: Path, files: dict[str, bytes], **how: bool) -> AdapterSlot:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    base.close("b")
    slot = base.open("b", tiny_model.MODEL, tiny_model.SHAPE, 9)
    checkpoint_format.restore(base, slot, folder, **how)
    return slot


def test_weights_alone_start_with_a_new_optimizer_and_are_the_reference(model_dir: Path, tmp_path: Path) -> None:
    base = tiny_model.load(model_dir)
    slot, files = compared(base)
    started = restored(base, tmp_path, files, resume=False, optimizer=False)
    assert all(torch.equal(tensor, slot.parameters[name]) for name, tensor in started.parameters.items())
    assert (started.updates, len(started.optimizer.state)) == (0, 0)
    assert not torch.equal(started.rng["cpu"], slot.rng["cpu"])
    base.fix_reference(started)
    assert started.reference is Reference.copy


def test_a_checkpoint_has_the_reference_of_the_kl_penalty(model_dir: Path, tmp_path: Path) -> None:
    base = tiny_model.load(model_dir)
    slot, files = compared(base)
    assert slot.reference is Reference.copy
    resumed = restored(base, tmp_path, files)
    assert resumed.reference is Reference.copy
    assert resumed.copied.keys() == resumed.parameters.keys()
    assert all(torch.equal(tensor, slot.copied[name]) for name, tensor in resumed.copied.items())
    assert any(not torch.equal(tensor, slot.parameters[name]) for name, tensor in resumed.copied.items())
    assert restored(base, tmp_path, files, resume=False).reference is Reference.pending


def test_a_checkpoint_without_its_reference_is_refused(model_dir: Path, tmp_path: Path) -> None:
    base = tiny_model.load(model_dir)
    _, files = compared(base)
    del files[REFERENCE]
    with pytest.raises(ProblemError, match=r"has no reference\.safetensors"):
        restored(base, tmp_path, files)


def test_the_reference_is_computed_without_dropout_and_leaves_the_adapter(model_dir: Path) -> None:
    base = tiny_model.load(model_dir)
    slot, _ = compared(base, AdapterShape(4, 8.0, tiny_model.TARGETS, dropout=0.5))
    base.activate(slot)
    ids = torch.arange(12, device=base.device)[None]
    before = slot.files()
    state = torch.get_rng_state()
    found = []
    for _ in range(2):
        with base.reference(slot):
            found.append(base.hidden_states(ids, ids))
    assert torch.equal(found[0], found[1])
    assert torch.equal(torch.get_rng_state(), state)
    assert slot.files() == before
    assert not torch.equal(base.hidden_states(ids, ids), base.hidden_states(ids, ids)), "the policy keeps its dropout"


def test_a_mixture_of_experts_trains_and_stock_peft_loads_its_adapter(tmp_path: Path) -> None:
    model_dir = tiny_model.save_moe(tmp_path / "moe")
    base = tiny_model.load(model_dir)
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, ("q_proj", "k_proj", "v_proj", "o_proj")), 0)
    samples = [replace(s, loss=SampleLoss.cross_entropy) for s in tiny_model.samples(8)]
    metrics = [train_step(base, slot, samples, PLAN) for _ in range(4)]
    assert metrics[-1]["loss/mean"] < metrics[0]["loss/mean"]
    assert_stock_peft_agrees(base, slot, model_dir, tmp_path)


def test_experts_are_no_layers_for_an_adapter(tmp_path: Path) -> None:
    base = tiny_model.load(tiny_model.save_moe(tmp_path))
    with pytest.raises(ProblemError, match="gate_proj") as caught:
        base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    assert caught.value.problem.reason == "AdapterInvalid"
