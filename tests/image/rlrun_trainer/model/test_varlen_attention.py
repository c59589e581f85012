"""Packed samples without a mask: the kernel is used for a model only if its results are exact.

On CPUs, kernels of the tests stand behind torch's operators, for float32, too. On GPUs the kernels are torch's.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.train_batch import Sample
from rlrun.service.errors import ProblemError
from rlrun_trainer.model import attention_choice, varlen_attention
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.loader import Loader
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.model.row_layout import lay_out
from rlrun_trainer.model.varlen_attention import Boundaries
from rlrun_trainer.optimization.step import StepPlan, train_step
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor, OpenSlot, Train

from tests.support import model_families, tiny_model, varlen_kernels
from tests.support.tensor_watch import TensorWatch
from tests.support.two_processes import on_both

assert varlen_kernels
pytestmark = pytest.mark.skipif(tiny_model.DEVICE != "cpu", reason="kernels for GPUs take no float32")
WITH_KERNEL = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "mistral", "olmo3", "glm4", "phi3", "seed_oss", "mixtral",
    "deepseek_v3", "qwen3_next", "lfm2", "qwen3_5", "qwen2_5_vl", "gemma3",
)  # fmt: skip
WITHOUT = {
    "gpt_oss": "no s_aux",
    "mimo_v2_flash": "no s_aux",
    "gemma2": "no softcap",
    "deepseek_v32": "no attention without a mask",
    "deepseek_v4": "no attention without a mask",
    "llama4_text": "no attention without a mask",
}
LENGTHS = (40, 12, 16, 10, 36)


def load(folder: Path, family: str, **settings: Any) -> BaseModel:
    return tiny_model.load(model_families.save_family(folder, family), slots=1, **settings)


def opened(base: BaseModel) -> AdapterSlot:
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, ("all-linear",)), 1)
    base.activate(slot)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return slot


def states_and_gradients(
    base: BaseModel, slot: AdapterSlot, samples: list[torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Hidden states of each sample, and the gradient of the mean cross-entropy by the adapter."""
    layout = lay_out([samples] if base.shares_rows else [[sample] for sample in samples])
    hidden = base.hidden_states(layout.input_ids, layout.position_ids)
    loss = -torch.cat(layout.logprobs(hidden, base.head)).mean()
    found = torch.autograd.grad(loss, list(slot.parameters.values()))
    states = [hidden[row, start : start + len(ids)].detach() for row, start, ids in layout.places]
    return states, dict(zip(slot.parameters, found, strict=True))


@pytest.mark.parametrize("family", WITH_KERNEL)
def test_packed_samples_are_as_alone_and_gradients_those_of_the_familys_attention(tmp_path: Path, family: str) -> None:
    base = load(tmp_path, family, attention="varlen", gradient_checkpointing="on")
    assert base.loader.attention == "varlen"
    assert base.warnings == []
    slot = opened(base)
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randint(3, 60, (length,), generator=generator) for length in LENGTHS]
    packed, gradients = states_and_gradients(base, slot, samples)
    base.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        alone = [base.hidden_states(ids[None], torch.arange(len(ids))[None])[0] for ids in samples]
    # Linear attention has rounding errors of its own, with any attention in the other layers.
    rounding = 1 if base.shares_rows else 10
    largest = max(1.0, *(float(states.abs().max()) for states in alone))
    assert max(float((x - y).abs().max()) for x, y in zip(packed, alone, strict=True)) <= 1e-5 * rounding * largest
    base.shares_rows = base.shares_rows and family != "qwen2_5_vl"
    _, theirs = states_and_gradients(base, slot, samples)
    steepest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert steepest > 1e-3
    difference = max(float((gradients[name] - theirs[name]).abs().max()) for name in theirs)
    assert difference <= 1e-6 * rounding * max(1.0, steepest)


@pytest.mark.parametrize("family", WITHOUT)
def test_a_family_that_the_kernel_does_not_compute_keeps_its_attention_and_the_log_says_why(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plain = load(tmp_path, family)
    monkeypatch.setattr(Loader, "tries_varlen", True)
    base = tiny_model.load(tmp_path, slots=1)
    assert (base.loader.attention, base.shares_rows, base.single_row, base.warnings) == (
        plain.loader.attention, plain.shares_rows, False, plain.warnings
    )  # fmt: skip
    assert WITHOUT[family] in caplog.text
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(base.hidden_states(ids, ids), plain.hidden_states(ids, ids))


def test_sinks_are_found_by_measuring_without_a_check_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen_attention, "NOT_COMPUTED", ())
    with pytest.raises(ProblemError, match=r"differ by .* from those computed alone") as caught:
        load(tmp_path, "gpt_oss", attention="varlen")
    assert caught.value.problem.reason == "ModelUnsupported"


def test_a_wrong_gradient_behind_right_probabilities_is_found(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The planted mistake: a kernel without gradients of the queries.
    caplog.set_level(logging.INFO)
    kernel = varlen_attention.varlen_attn
    monkeypatch.setattr(
        varlen_attention, "varlen_attn", lambda query, *rest, **how: kernel(query.detach(), *rest, **how)
    )
    monkeypatch.setattr(Loader, "tries_varlen", True)
    base = tiny_model.load(model_dir)
    assert base.loader.attention == "sdpa"
    assert "gradients of samples in a batch differ by" in caplog.text


def test_heads_that_the_kernel_does_not_take_keep_their_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Loader, "tries_varlen", True)
    base = tiny_model.load(model_families.save_family(tmp_path, "llama", head_dim=12), slots=1)
    assert base.loader.attention == "sdpa"
    assert "heads of {12} are not supported" in caplog.text


def test_a_demanded_kernel_that_is_not_exact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ProblemError, match=r"GptOssForCausalLM cannot be computed with varlen attention: .*auto"
    ) as caught:
        load(tmp_path, "gpt_oss", attention="varlen")
    assert caught.value.problem.reason == "ModelUnsupported"


def long_samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    ids = [
        torch.randint(3, tiny_model.VOCABULARY, (length,), generator=generator).tolist()
        for length in (120, 110, 100, 90, 80, 70, 60)
    ]
    masks = [[i > 3 for i in range(len(each))] for each in ids]
    return [
        Sample(token_ids=each, loss_mask=mask, logprobs=[-1.0 * m for m in mask], advantage=1.0, policy_version=0)
        for each, mask in zip(ids, masks, strict=True)
    ]


@pytest.mark.parametrize(("attention", "masks"), [("varlen", False), ("sdpa", True)])
def test_a_step_makes_no_tensor_of_the_rows_width_squared(model_dir: Path, attention: str, masks: bool) -> None:
    base = tiny_model.load(model_dir, attention=attention, gradient_checkpointing="on")
    slot = opened(base)
    base.single_row = True
    samples = long_samples()
    width = sum(len(sample.token_ids) for sample in samples)
    # The smallest mask has a byte for each pair.
    with TensorWatch(width**2) as watch:
        metrics = train_step(base, slot, samples, StepPlan(1e-3, micro_batch_tokens=width, max_grad_norm=1.0))
    assert metrics["batch/micro_batches"] == 1
    assert metrics["batch/padding"] == 0
    assert bool(watch.made) == masks, watch.made


def test_boundaries_are_where_positions_restart() -> None:
    found = Boundaries.of(torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]))
    assert found.starts.tolist() == [0, 3, 5, 9, 10]
    assert found.starts.dtype == torch.int32
    assert found.longest == 4


def test_all_weights_are_trained_with_the_attention_that_was_chosen(model_dir: Path, tmp_path: Path) -> None:
    figures = {}
    for attention in ("varlen", "sdpa"):
        base = tiny_model.load(model_dir, attention=attention, scratch=tmp_path)
        crew = CollectiveExecutor(base)
        crew.run_on_all(OpenSlot("run", tiny_model.spec("s3://b/x", kind=PolicyKind.weights)))
        assert base.model.config._attn_implementation == attention
        plan = StepPlan(1e-3, micro_batch_tokens=200, max_grad_norm=1.0)
        figures[attention] = crew.run_on_all(Train("run", plan, tiny_model.samples(8)))
    for name in ("loss/mean", "optim/grad_norm", "mismatch_kl/all/mean"):
        assert figures["varlen"][name] == pytest.approx(figures["sdpa"][name], rel=1e-5)


def test_differences_are_judged_by_the_precision() -> None:
    ones = attention_choice.Derivatives([torch.zeros(3, 1)], [torch.ones(3, 4)])
    noisy = attention_choice.Derivatives([torch.full((3, 1), 0.01)], [torch.ones(3, 4) * 1.1])
    assert attention_choice.difference(noisy, ones, torch.bfloat16) == ""
    assert "0.01 nats" in attention_choice.difference(noisy, ones, torch.float32)
    assert "gradients" in attention_choice.difference(
        attention_choice.Derivatives(ones.logprobs, noisy.gradients), ones, torch.float32
    )
    broken = attention_choice.Derivatives(ones.logprobs, [torch.full((3, 4), torch.nan)])
    assert "gradients" in attention_choice.difference(broken, ones, torch.bfloat16)


def chosen(folder: Path, world: Any, **settings: Any) -> tuple[str, bool]:
    base = tiny_model.load(folder, world=world, **settings)
    return base.loader.attention, base.single_row


def with_failure(fault: Callable[[pytest.MonkeyPatch], None], folder: Path, world: Any) -> tuple[str, bool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "tries_varlen", True)
        if world.rank == 1:
            fault(patch)
        return chosen(folder, world)


def broken_kernel(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image is available")

    patch.setattr(varlen_attention, "varlen_attn", refuse)


def broken_files(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("this process alone cannot read the model")

    patch.setattr("rlrun_trainer.model.loader.load_weights", refuse)


def test_two_processes_choose_alike(model_dir: Path) -> None:
    assert on_both(lambda world: with_failure(lambda _: None, model_dir, world)) == [("varlen", True)] * 2
    assert on_both(lambda world: with_failure(broken_kernel, model_dir, world)) == [("sdpa", False)] * 2


def test_what_one_process_cannot_load_fails_on_both_at_once(model_dir: Path) -> None:
    for found in on_both(lambda world: with_failure(broken_files, model_dir, world)):
        assert found.startswith("ProblemError: ModelUnsupported")
        assert "this process alone cannot read the model" in found
