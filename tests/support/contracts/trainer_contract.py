"""Requests to a trainer with the answers that every backend gives: the same conversation with the real and the stub.

Statuses and reasons are stated here. The result has what only a comparison can check: keys and types of answers, names
of metrics, files in S3 with the names and shapes of their tensors.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlrun.protocol.train_batch import Sample, SampleLoss
from rlrun.protocol.trainer import SessionState, StepResult
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store

from tests.support.images.stub_trainer.safetensors_file import read_shapes
from tests.support.train_bodies import body_of
from tests.support.trainer_client import Client
from tests.support.trainer_requests import VOCABULARY, samples, spec

COMPARED_TENSORS = ("adapter_model.safetensors", "model.safetensors")
ADAPTER_CONFIG = (
    "base_model_name_or_path", "bias", "inference_mode", "lora_alpha", "lora_dropout", "peft_type", "r",
    "target_modules", "task_type",
)  # fmt: skip
"""Fields of adapter_config.json that engines and peft need."""
STATE = {"cursor": 17}


def shape_of(value: Any) -> Any:
    """Return keys and types of a JSON value."""
    if isinstance(value, Mapping):
        return {key: shape_of(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        shapes: list[Any] = []
        for entry in value:
            shape = shape_of(entry)
            if shape not in shapes:
                shapes.append(shape)
        return shapes
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


class Conversation:
    """Requests of one client, and what was observed."""

    def __init__(self, client: Client, store: Store, run_uri: str) -> None:
        self.observed: dict[str, Any] = {}
        self._client = client
        self._store = store
        self._run_uri = run_uri

    def uri(self, name: str) -> str:
        """Folder of a run in S3."""
        return f"{self._run_uri}-{name}"

    def checkpoint(self, name: str, step: int) -> str:
        """URI of a run's checkpoint."""
        return str(RunLayout(S3Uri.parse(self.uri(name))).checkpoint(step))

    async def ask(
        self, what: str, method: str, path: str, body: str | bytes | None = None, status: int = 200, reason: str = ""
    ) -> str:
        """Make a request, which must have this status and, if it fails, this reason."""
        got, text = await self._client.call(method, path, body)
        assert got == status, f"{what}: {got} {text}"
        answer: Any = json.loads(text) if text.startswith("{") else text
        if reason:
            assert answer["reason"] == reason, f"{what}: {text}"
        assert what not in self.observed, f"{what} was asked before"
        self.observed[what] = shape_of(answer)
        return text

    async def open(self, name: str, what: str, status: int = 200, reason: str = "", **changes: Any) -> str:
        """Open a session, as run `name` unless `changes` have another run_uri."""
        requested = spec(**({"run_uri": self.uri(name), "uid": name} | changes))
        return await self.ask(
            what, "PUT", f"/sessions/{name}", requested.model_dump_json(by_alias=True), status, reason
        )

    async def step(
        self, name: str, step: int, batch: Iterable[Sample], what: str, status: int = 200, reason: str = ""
    ) -> str:
        """Ask for a step."""
        body = body_of(list(batch), what)
        return await self.ask(what, "POST", f"/sessions/{name}/steps/{step}", body, status, reason)

    async def save(self, kind: str, name: str, step: int, what: str, status: int = 202, reason: str = "") -> None:
        """Ask for a checkpoint or an adapter, and wait for its upload."""
        body = json.dumps({"orchestratorState": STATE})
        await self.ask(what, "POST", f"/sessions/{name}/{kind}/{step}", body, status, reason)
        if status == 202:
            await self._client.settled(name)

    async def close(self, name: str) -> None:
        """Close a session."""
        status, text = await self._client.call("DELETE", f"/sessions/{name}")
        assert status == 204, text

    def artifact(self, what: str, uri: str) -> None:
        """Observe the files of an artifact in S3."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "artifact"
            manifest = self._store.download(S3Uri.parse(uri), folder)
            seen: dict[str, Any] = {
                "manifest": shape_of(json.loads(manifest.model_dump_json(by_alias=True, exclude_none=True))),
                "details": manifest.details,
                "files": sorted(entry.name for entry in manifest.files),
            }
            for path in sorted(folder.iterdir()):
                if path.name in COMPARED_TENSORS:
                    seen[path.name] = dict(sorted(read_shapes(path).items()))
                elif path.name == "adapter_config.json":
                    config = json.loads(path.read_text())
                    seen[path.name] = {field: config[field] for field in ADAPTER_CONFIG}
                elif path.name in ("trainer.json", "orchestrator_state.json", "config.json"):
                    seen[path.name] = shape_of(json.loads(path.read_text()))
        self.observed[what] = seen


def changed(batch: list[Sample], **changes: Any) -> list[Sample]:
    """Return the batch with a changed first sample."""
    return [replace(batch[0], **changes), *batch[1:]]


async def observe(client: Client, store: Store, run_uri: str) -> dict[str, Any]:
    """Hold the conversation with a trainer of two slots that has no sessions. Return the observed shapes by request."""
    conversation = Conversation(client, store, run_uri)
    await _sessions_and_steps(conversation)
    await _batches(conversation)
    await _checkpoints(conversation)
    await _penalty(conversation)
    await _weights(conversation)
    return conversation.observed


async def _sessions_and_steps(c: Conversation) -> None:
    for path in ("/healthz", "/readyz"):
        await c.ask(path, "GET", path)
    await c.ask("state of no session", "GET", "/sessions/a", None, 404, "SessionMissing")
    await c.step("a", 0, samples(4), "step of no session", 404, "SessionMissing")
    await c.ask("spec without fields", "PUT", "/sessions/a", '{"runUri": 1}', 422, "SessionSpecInvalid")
    await c.open("a", "run outside of S3", 422, "SessionInvalid", run_uri="/tmp/x")
    await c.open("a", "unknown layer", 422, "AdapterInvalid", lora={"target_modules": ["nope"]})
    opened = SessionState.model_validate_json(await c.open("a", "open", max_steps=3))
    c.artifact("policy of step 0", opened.policy.uri)
    await c.open("a", "open again", max_steps=3)
    await c.open("a", "open with another spec", 422, "SessionConflict", max_steps=3, learning_rate=0.5)
    result = StepResult.model_validate_json(await c.step("a", 0, samples(6), "first step"))
    again = StepResult.model_validate_json(await c.step("a", 0, samples(6), "repeated step"))
    assert again == result
    await c.step("a", 2, samples(6), "step too early", 409, "StepConflict")
    await c.ask("state", "GET", "/sessions/a")
    c.artifact("policy of step 1", result.policy.uri)
    cached = f"/sessions/a/policies/{result.policy.name}"
    await c.ask("manifest at the trainer", "GET", f"{cached}/manifest.json")
    await c.ask("unknown file", "GET", f"{cached}/x", None, 404, "PolicyMissing")
    metrics = await c.ask("metrics", "GET", "/metrics")
    c.observed["series"] = sorted(line.split(" ")[0] for line in metrics.splitlines() if 'session="a"' in line)
    await c.open("b", "second slot")
    await c.open("c", "no third slot", 503, "NoFreeSlot")
    await c.open("c", "weights beside an adapter", 503, "NoFreeSlot", kind="weights")
    await c.close("b")
    await c.ask("unknown route", "GET", "/nowhere", None, 404, "NotFound")


async def _batches(c: Conversation) -> None:
    batch = samples(4, seed=1)
    length = len(batch[0].token_ids)
    mask = batch[0].loss_mask
    bad: dict[str, list[Sample]] = {
        "no samples": [],
        "token outside of the vocabulary": changed(batch, token_ids=[VOCABULARY] * length),
        "negative token": changed(batch, token_ids=[-1] * length),
        "trainable first token": changed(batch, loss_mask=[True] * length),
        "more tokens than seqLen": changed(batch, token_ids=[1] * 65, loss_mask=[False] * 65, logprobs=[0.0] * 65),
        "probability above 1": changed(batch, logprobs=[2.0 if m else 0.0 for m in mask]),
        "nothing trainable": [replace(s, loss_mask=[False] * len(s.token_ids)) for s in batch],
    }
    for what, rejected in bad.items():
        await c.step("a", 1, rejected, what, 422, "BatchInvalid")
    await c.ask("no batch", "POST", "/sessions/a/steps/1", "not json", 422, "TrainBatchInvalid")
    demonstrations = [replace(s, loss=SampleLoss.cross_entropy) for s in samples(3, seed=2)]
    taught = [replace(s, teacher_logprobs=s.logprobs) for s in samples(3, seed=3)]
    await c.step("a", 1, demonstrations, "demonstrations alone")
    newest = [replace(s, policy_version=2) for s in taught]
    await c.step("a", 2, [*newest, *demonstrations], "teacher and demonstrations")
    await c.step("a", 3, samples(4), "step beyond the last", 422, "RunComplete")


async def _checkpoints(c: Conversation) -> None:
    await c.save("checkpoints", "a", 7, "checkpoint of another step", 409, "StepConflict")
    await c.save("checkpoints", "a", 3, "checkpoint")
    await c.save("adapters", "a", 3, "adapter")
    c.artifact("files of a checkpoint", c.checkpoint("a", 3))
    c.artifact("files of an adapter", str(RunLayout(S3Uri.parse(c.uri("a"))).adapter(3)))
    await c.ask("state with artifacts", "GET", "/sessions/a")
    await c.close("a")
    saved: dict[str, Any] = {"resume_from": c.checkpoint("a", 3), "run_uri": c.uri("a"), "uid": "a"}
    refused: dict[str, dict[str, Any]] = {
        "checkpoint of another run": {"uid": "other"},
        "checkpoint of another rank": {"lora": {"rank": 8}},
        "checkpoint of another alpha": {"lora_alpha": 5.0},
        "checkpoint of other layers": {"lora": {"target_modules": ["q_proj"]}},
        "checkpoint of another model": {"model": "other/model"},
        "checkpoint of an adapter for weights": {"kind": "weights"},
    }
    for what, changes in refused.items():
        await c.open("d", what, 422, "CheckpointMismatch", **(saved | changes))
    await c.open("d", "missing checkpoint", 422, "S3NotFound", **(saved | {"resume_from": c.checkpoint("a", 999)}))
    await c.open("d", "resume", max_steps=9, **(saved | {"lora": {"target_modules": ["all-linear"]}}))
    await c.step("d", 3, samples(4), "step after a resume")
    await c.close("d")


async def _penalty(c: Conversation) -> None:
    penalty: dict[str, Any] = {"kl_penalty": {"beta": 0.3}}
    await c.open("e", "warm start", warm_start_from=c.checkpoint("a", 3), **penalty)
    await c.save("checkpoints", "e", 0, "checkpoint before the reference")
    c.artifact("files before the reference", c.checkpoint("e", 0))
    await c.step("e", 0, samples(6), "step with a penalty")
    await c.save("checkpoints", "e", 1, "checkpoint with a reference")
    c.artifact("files with a reference", c.checkpoint("e", 1))
    await c.close("e")
    resumed: dict[str, Any] = {"run_uri": c.uri("e"), "uid": "e", "resume_from": c.checkpoint("e", 1), **penalty}
    await c.open("f", "resume with a reference", **resumed)
    await c.step("f", 1, samples(6), "step with the old reference")
    await c.close("f")


async def _weights(c: Conversation) -> None:
    full: dict[str, Any] = {"kind": "weights", "learning_rate": 1e-3}
    opened = SessionState.model_validate_json(await c.open("w", "open for all weights", **full))
    c.artifact("weights of step 0", opened.policy.uri)
    await c.open("x", "adapter beside weights", 503, "NoFreeSlot")
    await c.step("w", 0, samples(6), "step of all weights")
    await c.save("checkpoints", "w", 1, "checkpoint of weights")
    await c.save("adapters", "w", 1, "weights for users")
    c.artifact("files of a checkpoint of weights", c.checkpoint("w", 1))
    await c.close("w")
    resumed: dict[str, Any] = {"run_uri": c.uri("w"), "uid": "w", "resume_from": c.checkpoint("w", 1)}
    await c.open("x", "checkpoint of weights for an adapter", 422, "CheckpointMismatch", **resumed)
    await c.open("x", "resume of all weights", **(full | resumed))
    await c.close("x")


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the paths at which two observations differ, with both values."""
    differing = []
    for key in dict.fromkeys([*ours, *theirs]):
        here, there = ours.get(key), theirs.get(key)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            differing += differences(here, there, f"{path}{key} / ")
        elif here != there:
            differing.append(f"{path}{key}: {here} and {there}")
    return differing
