"""However a batch is cut into forward passes, the gradient is that of its samples one by one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.api.run_sections.training import KlPenalty, Loss, RatioType
from rlrun.protocol.train_batch import SampleLoss
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.optimization.packing import pack
from rlrun_trainer.optimization.sampling_distribution import SamplingDistribution
from rlrun_trainer.optimization.step import train_step
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.image.rlrun_trainer.optimization.test_objective import gradients_of, mixed
from tests.image.rlrun_trainer.optimization.test_policy_loss import PLAN as POLICY_LOSS_PLAN
from tests.image.rlrun_trainer.optimization.test_policy_loss import TEMPERATURE, opened
from tests.support import tiny_model

PLAN = replace(POLICY_LOSS_PLAN, micro_batch_tokens=80)
BENT = Sampling(temperature=TEMPERATURE, top_p=0.9, repetition_penalty=1.2, min_tokens=3)
ALONE = replace(PLAN, micro_batch_tokens=1)
"""Every sample is longer than the budget, and so in a forward pass of its own, without padding."""
CHOICES = {
    "default": PLAN,
    "sequence": replace(PLAN, loss=Loss(ratio_type=RatioType.sequence, ratio_low=0.01, ratio_high=100)),
    "kl": replace(PLAN, kl_penalty=KlPenalty(beta=0.5)),
    "bent": replace(PLAN, distribution=SamplingDistribution(BENT, (2, 5))),
}


def assert_same(
    ours: tuple[list[torch.Tensor], dict[str, float]],
    theirs: tuple[list[torch.Tensor], dict[str, float]],
    within: float,
) -> None:
    assert ours[1]["loss/mean"] == pytest.approx(theirs[1]["loss/mean"], abs=within)
    assert max(float(g.abs().max()) for g in theirs[0]) > 1e-3
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert float((a - b).abs().max()) < within


@pytest.mark.parametrize("single_row", [False, True])
@pytest.mark.parametrize("choice", CHOICES)
def test_packed_samples_do_not_see_each_other(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, choice: str, single_row: bool
) -> None:
    opened(base)
    base.single_row = single_row
    batch = mixed(seed=2)
    alone = gradients_of(base, batch, replace(CHOICES[choice], micro_batch_tokens=1), monkeypatch)
    packed = gradients_of(base, batch, CHOICES[choice], monkeypatch)
    assert alone[1]["batch/micro_batches"] == len(batch)
    assert packed[1]["batch/micro_batches"] < len(batch) / 3
    assert_same(packed, alone, 1e-5)


@pytest.mark.parametrize("choice", CHOICES)
def test_recomputed_activations_change_nothing(
    model_dir: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    opened(base)
    stored = gradients_of(base, mixed(seed=2), CHOICES[choice], monkeypatch)
    saving = tiny_model.load(model_dir, gradient_checkpointing="on")
    opened(saving)
    attention: list[int] = []
    saving.model.model.layers[0].self_attn.register_forward_pre_hook(lambda *_: attention.append(1))
    recomputed = gradients_of(saving, mixed(seed=2), CHOICES[choice], monkeypatch)
    # Each layer runs a second time in the backward pass, and the reference has none.
    passes = recomputed[1]["batch/micro_batches"] * (3 if choice == "kl" else 2)
    assert len(attention) == passes
    assert_same(recomputed, stored, 1e-6)


@pytest.mark.proves("gradientAccumulationSteps")
@pytest.mark.parametrize("steps", [3, 7])
def test_accumulated_gradient_is_that_of_one_micro_batch(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    opened(base)
    whole = replace(PLAN, micro_batch_tokens=100_000)
    batch = mixed(seed=2)
    one = gradients_of(base, batch, whole, monkeypatch)
    several = gradients_of(base, batch, replace(whole, micro_batches=steps), monkeypatch)
    assert one[1]["batch/micro_batches"] == 1
    assert several[1]["batch/micro_batches"] == steps
    assert_same(several, one, 1e-6)


def test_there_are_no_more_micro_batches_than_samples() -> None:
    made = tiny_model.samples(3)
    assert len(pack(made, 1000, at_least=8)) == 3
    assert len(pack(tiny_model.samples(40), 64, at_least=2)) == len(pack(tiny_model.samples(40), 64))


def save_moe(folder: Path) -> Path:
    """A Qwen3 mixture of 4 experts, 2 of which work on each token."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=tiny_model.VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=48,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.15,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_mixture_of_experts_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tiny_model.load(save_moe(tmp_path))
    shape = AdapterShape(rank=4, alpha=8.0, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    slot = base.open("a", tiny_model.MODEL, shape, 1)
    base.activate(slot)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.normal_(std=0.05)
    batch = mixed(seed=2)
    alone = gradients_of(base, batch, ALONE, monkeypatch)
    packed = gradients_of(base, batch, PLAN, monkeypatch)
    assert_same(packed, alone, 1e-5)
    assert len(packed[0]) == 2 * 4 * 2
    assert all(float(gradient.abs().max()) > 0 for gradient in packed[0])
    losses = [imitate(base, slot_name="a") for _ in range(25)]
    assert losses[-1] < losses[0] - 1.0


def imitate(base: BaseModel, slot_name: str) -> float:
    """One step of maximum likelihood on the same few sequences; its loss."""
    batch = tiny_model.samples(8, seed=9)
    for sample in batch:
        sample.loss = SampleLoss.cross_entropy
    return train_step(base, base.slots[slot_name], batch, replace(PLAN, learning_rate=2e-2))["loss/mean"]
