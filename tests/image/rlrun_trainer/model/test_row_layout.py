"""Samples share a row of a micro-batch only if the model keeps them apart."""

import itertools
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rlrun.service.errors import ProblemError
from rlrun_trainer.model import row_layout
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.model.row_layout import RowDifference, measure, mixing_layers
from rlrun_trainer.optimization.step import train_step

from tests.image.rlrun_trainer.optimization.test_objective import gradients_of, mixed
from tests.image.rlrun_trainer.optimization.test_step import ALONE, PLAN, assert_same
from tests.support import model_families, tiny_model
from tests.support.micro_batches import micro_batches

HYBRIDS = {"qwen3_next": "linear_attention", "qwen3_5": "linear_attention", "lfm2": "conv"}
HYBRIDS |= {"granitemoehybrid": "linear_attention"}


def opened(base: BaseModel) -> AdapterSlot:
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, ("all-linear",)), 1)
    base.activate(slot)
    with torch.no_grad():
        for parameter in slot.parameters.values():
            parameter.normal_(std=0.05)
    return slot


def load(folder: Path, name: str) -> BaseModel:
    return tiny_model.load(model_families.save_family(folder, name))


@pytest.mark.parametrize("name", [*HYBRIDS, "gpt_oss"])
def test_log_probs_of_a_batch_are_those_of_each_sample_alone(tmp_path: Path, name: str) -> None:
    base = load(tmp_path, name)
    made = tiny_model.samples(12, seed=2)
    compared = 0
    with torch.no_grad():
        alone = {tuple(s.token_ids): tiny_model.plain_logprobs(base, s) for s in made}
        for batch in micro_batches(made, 80, base.single_row, share_rows=base.shares_rows):
            moved = batch.to(base.device)
            hidden = base.hidden_states(moved.input_ids, moved.position_ids)
            logp = torch.log_softmax(base.head(hidden).float(), -1).cpu()
            rows = zip(batch.input_ids.tolist(), batch.position_ids.tolist(), logp, strict=True)
            for ids, positions, found in rows:
                starts = [i for i, p in enumerate(positions) if p == 0] + [len(ids)]
                for start, end in itertools.pairwise(starts):
                    expected = alone.get(tuple(ids[start:end]))
                    if expected is None:
                        continue
                    got = found[start : end - 1].gather(-1, torch.tensor(ids[start + 1 : end])[:, None]).squeeze(-1)
                    assert torch.allclose(got, expected, atol=1e-4)
                    compared += 1
    assert compared == len(made)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2"])
def test_gradient_of_a_hybrid_is_that_of_its_samples_alone(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = load(tmp_path, name)
    opened(base)
    alone = gradients_of(base, mixed(seed=2), ALONE, monkeypatch)
    together = gradients_of(base, mixed(seed=2), PLAN, monkeypatch)
    assert together[1]["batch/micro_batches"] < alone[1]["batch/micro_batches"]
    # On a GPU float32 rounds both differently: each is up to 4e-4 from the gradient in float64 (qwen3_next, where
    # gradients reach 2.4), also without TF32 and cuDNN.
    assert_same(together, alone, 1e-4 if tiny_model.DEVICE == "cpu" else 1e-3)


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_has_one_sample_per_row_and_the_log_names_its_layers(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    base = load(tmp_path, name)
    assert not base.shares_rows
    assert base.warnings == []
    assert HYBRIDS[name] in caplog.text
    slot = opened(base)
    assert train_step(base, slot, tiny_model.samples(12), PLAN)["batch/samples_per_row"] == 1


def test_a_model_of_attention_layers_packs(base: BaseModel) -> None:
    assert base.shares_rows
    assert base.warnings == []
    slot = opened(base)
    assert train_step(base, slot, tiny_model.samples(12), PLAN)["batch/samples_per_row"] > 1.2


def test_attention_that_mixes_samples_disables_packing_with_a_warning(tmp_path: Path) -> None:
    base = load(tmp_path, "gpt_oss")
    assert not base.shares_rows
    [warning] = base.warnings
    assert warning.reason == "PackingDisabled"
    assert "one sample per row" in warning.message


def test_the_check_sees_layers_that_mix_samples(tmp_path: Path) -> None:
    # The planted mistake: a hybrid that claims to consist of attention layers only.
    base = load(tmp_path, "lfm2")
    with torch.no_grad():
        found = measure(base.hidden_states, base.head, base.vocab_size, base.device)
    assert found.shared > 0.3
    assert found.separate < 1e-4


def test_a_model_that_mixes_padded_rows_is_refused(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The planted mistake: hidden states that depend on the width of the row.
    decode = BaseModel.hidden_states

    def broken(base: BaseModel, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        states = decode(base, input_ids, position_ids)
        return states * states.shape[0]

    monkeypatch.setattr(BaseModel, "hidden_states", broken)
    with pytest.raises(ProblemError, match=r"one sample per row.*another model") as caught:
        tiny_model.load(model_dir)
    assert caught.value.problem.reason == "SamplesNotSeparated"


@pytest.mark.parametrize(
    ("types", "mixing"),
    [
        (None, []),
        (["full_attention", "sliding_attention", "indexed_attention"], []),
        (["chunked_attention", "full_attention"], ["chunked_attention"]),
        (["full_attention", "moe", "mlp"], []),
        (["compressed_sparse_attention", "sliding_attention"], ["compressed_sparse_attention"]),
        (["heavily_compressed_attention", "minimax_m3_sparse"], ["heavily_compressed_attention", "minimax_m3_sparse"]),
        (["full_attention", "linear_attention", "linear_attention"], ["linear_attention"]),
        (["conv", "hybrid", "full_attention", "hybrid_sliding"], ["conv", "hybrid", "hybrid_sliding"]),
        (["full_attention", "a_new_kind"], ["a_new_kind"]),
    ],
)
def test_layers_that_may_mix_samples_are_known_by_type(types: list[str] | None, mixing: list[str]) -> None:
    assert mixing_layers(types) == mixing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tolerance_depends_on_the_precision(dtype: torch.dtype) -> None:
    limit = row_layout.tolerance(dtype)
    fine = RowDifference(shared=limit / 2, separate=limit / 2)
    assert row_layout.choose_packing(fine, [], dtype) == (True, None)
    shares, warning = row_layout.choose_packing(replace(fine, shared=limit * 2), [], dtype)
    assert not shares
    assert warning is not None
    # Rounding with one sample per row excuses a larger difference in a shared row, but only up to twice the limit.
    assert row_layout.choose_packing(RowDifference(shared=limit * 1.9, separate=limit), [], dtype) == (True, None)
    assert not row_layout.choose_packing(RowDifference(shared=limit * 2.1, separate=limit * 4), [], dtype)[0]
    assert row_layout.choose_packing(fine, ["conv"], dtype) == (False, None)
    with pytest.raises(ProblemError, match="SamplesNotSeparated"):
        row_layout.choose_packing(replace(fine, separate=limit * 6), [], dtype)
    with pytest.raises(ProblemError, match="SamplesNotSeparated"):
        row_layout.choose_packing(replace(fine, separate=float("nan")), [], dtype)


def test_rows_that_are_not_shared_hold_one_sample_each() -> None:
    made = tiny_model.samples(30, seed=1)
    for single_row in (False, True):
        batches = micro_batches(made, 64, single_row, share_rows=False)
        assert sum(batch.samples for batch in batches) == sum(len(batch.input_ids) for batch in batches) == len(made)
        assert all(batch.input_ids.numel() <= 64 for batch in batches)
        assert sum(batch.tokens for batch in batches) / sum(batch.input_ids.numel() for batch in batches) > 0.8
