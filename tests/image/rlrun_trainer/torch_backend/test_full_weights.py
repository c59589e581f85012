"""Runs that train all weights of the model."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rlrun.api.run_sections.training import KlPenalty
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store
from rlrun_trainer.artifacts.artifact_files import TempFolder
from rlrun_trainer.artifacts.checkpoint_facts import OPTIMIZER, CheckpointProgress
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.optimization.batch_share import share_batch
from rlrun_trainer.optimization.packing import pack
from rlrun_trainer.optimization.step import StepPlan, train_step
from rlrun_trainer.runtime.process_group import ProcessGroup, StepAborted
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.torch_backend import full_weights
from rlrun_trainer.torch_backend.collective_executor import (
    CloseSlot,
    CollectiveExecutor,
    Heartbeat,
    OpenSlot,
    Restore,
    Snapshot,
)
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from tests.support import tiny_model
from tests.support.trainer_client import Client

PLAN = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=1.0)
SAMPLE = torch.arange(12)[None] % tiny_model.VOCABULARY
SETTINGS = TrainerSettings()
FULL: dict[str, Any] = {"kind": PolicyKind.weights, "learning_rate": 1e-3}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=SAMPLE.to(model.device), use_cache=False).logits.float().cpu()
    return result


def fetched(store: Store, uri: str, to: Path) -> Path:
    store.download(S3Uri.parse(uri), to)
    return to


@pytest.mark.proves("lora.enabled")
async def test_a_policy_is_a_stock_folder_with_the_very_weights_that_were_trained(
    client: Client, base: BaseModel, store: Store, run_uri: str, tmp_path: Path
) -> None:
    before = logits(base.model)
    first = await client.open(tiny_model.spec(run_uri, **FULL))
    results = [await client.step(step) for step in range(2)]
    ref = results[-1].policy
    assert {r.policy.kind for r in results} == {first.policy.kind} == {PolicyKind.weights}
    folder = fetched(store, ref.uri, tmp_path / "policy")
    assert ref.digest == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    stock = AutoModelForCausalLM.from_pretrained(folder).to(base.device).eval()
    assert stock.dtype == torch.float32
    assert torch.equal(logits(stock), logits(base.model))
    assert (logits(stock) - before).abs().max() > 1e-3
    assert AutoTokenizer.from_pretrained(folder)("a b")["input_ids"] == [3, 4]
    assert (folder / "generation_config.json").is_file()
    manifest = store.read_manifest(S3Uri.parse(ref.uri))
    assert manifest is not None
    assert manifest.details["kind"] == "weights"
    assert "rank" not in manifest.details


@pytest.mark.proves("lora.enabled")
async def test_all_weights_learn(base: BaseModel) -> None:
    slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
    before = {name: p.clone() for name, p in slot.parameters.items()}
    train_step(base, slot, tiny_model.samples(8), PLAN)
    unchanged = [name for name, p in slot.parameters.items() if torch.equal(p, before[name])]
    assert unchanged == []


async def test_a_full_weight_run_excludes_other_sessions_and_restores_the_base_model(
    client: Client, base: BaseModel, run_uri: str
) -> None:
    before = logits(base.model)
    await client.open(tiny_model.spec(run_uri + "-a", uid="a"), "a")
    body = tiny_model.spec(run_uri, **FULL).model_dump_json(by_alias=True)
    status, text = await client.call("PUT", "/sessions/run", body)
    problem = Problem.model_validate_json(text)
    assert (status, problem.reason) == (503, "NoFreeSlot")
    assert "whole trainer" in problem.message
    await client.call("DELETE", "/sessions/a")
    await client.open(tiny_model.spec(run_uri, **FULL))
    await client.step(0)
    for changes in ({}, FULL):
        body = tiny_model.spec(run_uri + "-b", uid="b", **changes).model_dump_json(by_alias=True)
        status, text = await client.call("PUT", "/sessions/b", body)
        assert (status, Problem.model_validate_json(text).reason) == (503, "NoFreeSlot")
    await client.call("DELETE", "/sessions/run")
    assert torch.equal(logits(base.model), before)
    assert not any(p.requires_grad for p in base.model.parameters())
    await client.open(tiny_model.spec(run_uri + "-c", uid="c"), "c")
    await client.step(0, "c")


async def test_a_resumed_full_run_equals_the_uninterrupted_one_to_the_bit(
    make_client: Callable[..., Any], base: BaseModel, store: Store, run_uri: str, tmp_path: Path
) -> None:
    client = await make_client()
    await client.open(tiny_model.spec(run_uri, **FULL))
    for step in range(2):
        await client.step(step)
    await client.save("checkpoints", 2, '{"orchestratorState": {"cursor": 17}}')
    await client.save("adapters", 2)
    digests = [(await client.step(step)).policy.digest for step in (2, 3)]
    state = await client.settled()
    assert (state.checkpoints, state.adapters) == ([2], [2])
    await client.call("DELETE", "/sessions/run")
    # Models on their way to S3 are on disk, and gone from there once they have arrived.
    assert base.loader.settings.scratch is not None
    assert os.listdir(base.loader.settings.scratch) == []
    place = RunLayout(S3Uri.parse(run_uri))
    for uri in (place.checkpoint(2), place.adapter(2)):
        folder = fetched(store, str(uri), tmp_path / uri.key.replace("/", "-"))
        AutoModelForCausalLM.from_pretrained(folder)

    other = await make_client()
    state = await other.open(tiny_model.spec(run_uri, resume_from=str(place.checkpoint(2)), **FULL))
    assert (state.step, state.orchestrator_state) == (2, {"cursor": 17})
    assert [(await other.step(step)).policy.digest for step in (2, 3)] == digests
    await other.call("DELETE", "/sessions/run")
    body = tiny_model.spec(run_uri, resume_from=str(place.checkpoint(2))).model_dump_json(by_alias=True)
    status, text = await other.call("PUT", "/sessions/run", body)
    assert status == 422
    assert "kind is weights in the checkpoint and adapter in this run" in text
    assert str(place.checkpoint(2)) in text


def test_the_reference_of_a_full_run_is_what_it_started_from(base: BaseModel) -> None:
    before = logits(base.model)
    slot = base.open_weights("run", tiny_model.MODEL, 0, compared=True)
    plan = StepPlan(1e-2, 64, 1.0, kl_penalty=KlPenalty(beta=0.5))
    divergences = [train_step(base, slot, tiny_model.samples(8, seed), plan)["kl_penalty/kl"] for seed in range(3)]
    assert divergences[0] == pytest.approx(0.0, abs=1e-9)
    assert divergences[2] > divergences[0]
    with base.reference(slot):
        assert torch.equal(logits(base.model), before)
    assert not torch.equal(logits(base.model), before)


def test_the_frozen_copy_is_made_only_for_a_penalty(base: BaseModel) -> None:
    crew = CollectiveExecutor(base)
    for changes, copied in (({}, False), ({"kl_penalty": KlPenalty()}, True)):
        crew.run_on_all(OpenSlot("run", tiny_model.spec("s3://b/x", kind=PolicyKind.weights, **changes)))
        assert (base.start is not None) == copied
        crew.run_on_all(CloseSlot("run"))
        assert base.start is None


def test_half_precision_compute_keeps_float32_weights(model_dir: Path, tmp_path: Path) -> None:
    base = tiny_model.load(model_dir, dtype="bfloat16", gradient_checkpointing="on")
    slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
    assert {p.dtype for p in slot.parameters.values()} == {torch.float32}
    assert (
        base.hidden_states(SAMPLE.to(base.device), torch.arange(12, device=base.device)[None]).dtype == torch.bfloat16
    )
    slow = StepPlan(learning_rate=1e-5, micro_batch_tokens=64, max_grad_norm=1.0)
    before = {name: p.to_local().clone() for name, p in slot.parameters.items()}
    train_step(base, slot, tiny_model.samples(8), slow)
    # An update that bfloat16 would round away is there.
    moved = [name for name, p in slot.parameters.items() if not torch.equal(p.to_local(), before[name])]
    assert len(moved) == len(before)
    policy = CollectiveExecutor(base).policy_files("run")
    saved = CollectiveExecutor(base).run_on_all(Snapshot("run", CheckpointProgress(1, "uid", {})))
    for files, dtype in ((policy, "bfloat16"), (saved, "float32")):
        config = json.loads((files.path / "config.json").read_text())
        assert (config["dtype"], str(AutoModelForCausalLM.from_pretrained(files.path).dtype)) == (
            dtype,
            f"torch.{dtype}",
        )
    restored = full_weights.read_model(saved.path, base.loader)
    assert all(torch.equal(restored[name], p.full_tensor().cpu()) for name, p in slot.parameters.items())
    base.close("run")
    assert next(base.model.parameters()).dtype == torch.bfloat16


def test_a_damaged_checkpoint_is_refused(base: BaseModel, tmp_path: Path) -> None:
    crew = CollectiveExecutor(base)
    crew.run_on_all(OpenSlot("run", tiny_model.spec("s3://b/x", kind=PolicyKind.weights)))
    files = crew.run_on_all(Snapshot("run", CheckpointProgress(0, "uid", {})))
    (files.path / OPTIMIZER).write_bytes(b"nothing")
    with pytest.raises(ProblemError, match="damaged"):
        crew.run_on_all(Restore("run", files.path))
    (files.path / OPTIMIZER).unlink()
    with pytest.raises(ProblemError, match="no optimizer"):
        crew.run_on_all(Restore("run", files.path))


@pytest.mark.parametrize(
    ("planted", "text"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM (model_type llama)"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "Qwen3ForSequenceClassification (model_type qwen3)"),
        ({"model_type": "own", "auto_map": {"AutoModelForCausalLM": "own.Own"}}, "Qwen3ForCausalLM (model_type own)"),
    ],
)
def test_a_checkpoint_of_another_class_is_refused(
    base: BaseModel, tmp_path: Path, planted: dict[str, Any], text: str
) -> None:
    folder = _planted(base, planted)
    (folder.path / "own.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')\nclass Own: pass\n")
    with pytest.raises(ProblemError) as refused:
        CollectiveExecutor(base).run_on_all(Restore("run", folder.path))
    assert refused.value.problem.reason == "CheckpointMismatch"
    assert text in refused.value.problem.message
    assert "base model is Qwen3ForCausalLM (model_type qwen3)" in refused.value.problem.message
    assert not (tmp_path / "made").exists()


def test_the_configuration_of_a_checkpoint_chooses_no_code(base: BaseModel) -> None:
    folder = _planted(base, {"attn_implementation": "a-stranger/kernels", "_attn_implementation": "a-stranger/kernels"})
    CollectiveExecutor(base).run_on_all(Restore("run", folder.path))


@pytest.mark.parametrize("content", ["[]", "{", None])
def test_a_checkpoint_without_a_readable_configuration_is_refused(base: BaseModel, content: str | None) -> None:
    folder = _planted(base, {})
    path = folder.path / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ProblemError, match="Could not load the checkpoint's model"):
        CollectiveExecutor(base).run_on_all(Restore("run", folder.path))


def _planted(base: BaseModel, config: dict[str, Any]) -> TempFolder:
    """A checkpoint of all weights in the session `run`, with other values in its configuration."""
    crew = CollectiveExecutor(base)
    crew.run_on_all(OpenSlot("run", tiny_model.spec("s3://b/x", kind=PolicyKind.weights)))
    folder: TempFolder = crew.run_on_all(Snapshot("run", CheckpointProgress(0, "uid", {})))
    path = folder.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def test_trainer_of_one_process_sends_no_commands(base: BaseModel) -> None:
    CollectiveExecutor(base).run_on_all(Heartbeat())
    CollectiveExecutor(base).stop()


@pytest.mark.parametrize("recompute", ["on", "off"])
def test_memory_that_runs_out_within_a_sharded_layer_changes_nothing(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, recompute: str
) -> None:
    def trained(fail: bool) -> dict[str, torch.Tensor]:
        base = tiny_model.load(model_dir, dtype="bfloat16", gradient_checkpointing=recompute)
        slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
        train_step(base, slot, tiny_model.samples(8, 0), PLAN)
        if fail:
            with monkeypatch.context() as patch:
                patch.setattr(Qwen3MLP, "forward", _no_memory)
                with pytest.raises(ProblemError, match="does not fit"):
                    train_step(base, slot, tiny_model.samples(8, 1), PLAN)
        train_step(base, slot, tiny_model.samples(8, 2), PLAN)
        return {name: p.full_tensor() for name, p in slot.parameters.items()}

    disturbed, quiet = trained(True), trained(False)
    assert all(torch.equal(disturbed[name], p) for name, p in quiet.items())


def test_a_process_that_fails_during_a_pass_does_not_wait_for_the_others(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = base.open("a", tiny_model.MODEL, tiny_model.SHAPE, 0)
    samples = tiny_model.samples(8)
    share = share_batch(ProcessGroup(), samples, pack(samples, 1000))
    base.loader.world = ProcessGroup(rank=1, size=2)
    monkeypatch.setattr("rlrun_trainer.optimization.step.share_batch", lambda *_: share)
    monkeypatch.setattr("rlrun_trainer.optimization.step.backward", _no_memory)
    # Not ProblemError: what happened cannot be undone, and the process has to end.
    with pytest.raises(StepAborted, match="a trap"):
        train_step(base, slot, [], PLAN)


def _no_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("a trap")
