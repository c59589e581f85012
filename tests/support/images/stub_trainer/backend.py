"""Backend of the trainer that learns nothing. The state of a run is a digest of its seed and of all it was trained on.

Runs with equal seeds and batches have equal policies, also after a resume, and any difference gives another one.
"""

import hashlib
import json
import math
import struct
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

from rlrun.constants import LATER, UNPROCESSABLE, Reason
from rlrun.protocol.client_command import DatumHeader, ForwardBackward, OptimStep
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.problem import Problem
from rlrun.protocol.train_batch import Sample, SampleLoss, samples_digest
from rlrun.protocol.trainer import LARGEST_LOGPROB, SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import ADAPTER_WEIGHTS, MODEL_WEIGHTS
from rlrun_trainer.artifacts import checkpoint_facts
from rlrun_trainer.artifacts.artifact_files import Files, TempFolder, writing
from rlrun_trainer.artifacts.checkpoint_facts import OPTIMIZER, REFERENCE, RNG, CheckpointProgress
from rlrun_trainer.artifacts.model_folder import CONFIG, copy_companions
from rlrun_trainer.optimization.learning_rate import learning_rate
from rlrun_trainer.runtime.compute_thread import Units
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.batch_validation import invalid_sample

from tests.support.images.stub_trainer.adapter import adapter_files, adapter_shapes, adapter_tensors
from tests.support.images.stub_trainer.agreement import Agreement
from tests.support.images.stub_trainer.safetensors_file import (
    Tensor,
    copy_with_metadata,
    encode,
    floats,
    read_shapes,
    read_tensor,
)
from tests.support.images.stub_trainer.step_metrics import learning_metrics, step_metrics

STATE = "cpu"
"""Tensor of rng.safetensors with the state."""
STATE_OF_REFERENCE, GRADIENT = "reference", "gradient"


@dataclass
class Slot:
    """Training state of one run."""

    spec: SessionSpec
    state: bytes
    updates: int = 0
    kl_beta: float | None = None
    reference: bytes | None = None
    """State that the KL penalty measures the distance from. Empty for the base model, None before it is fixed."""
    gradient: bytes = b""
    """Digest of the commands since the newest optimizer step."""
    policies: dict[int, str] = field(default_factory=dict)
    """Digests of the adapters that this process has trained from, by version."""


class StubBackend:
    """Backend for the model in a folder, of which it reads only the configuration and, for all weights, the file."""

    agreement: Agreement | None = None
    """Comparison with the stub engine. Without one the engine is taken to agree."""

    def __init__(self, settings: TrainerSettings, step_seconds: float = 0.0) -> None:
        """Read the configuration. `step_seconds` is the shortest time of a step. Raises ProblemError."""
        path = settings.model_dir / CONFIG
        if not path.is_file():
            raise ProblemError.of(
                UNPROCESSABLE,
                Reason.MODEL_MISSING,
                f"{settings.model_dir} contains no {CONFIG}. Check the RLModel's source and the log of the fetch "
                "container.",
            )
        self._config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self._settings = settings
        self._step_seconds = step_seconds
        self._slots: dict[str, Slot] = {}

    @property
    def warnings(self) -> Sequence[Problem]:
        """No findings."""
        return ()

    def open_slot(self, name: str, spec: SessionSpec) -> Sequence[Problem]:
        """Claim a slot in the state that the seed gives. Raises ProblemError."""
        whole = [other for other, slot in self._slots.items() if slot.spec.kind is PolicyKind.weights]
        if spec.kind is PolicyKind.weights:
            taken = bool(self._slots)
        else:
            taken = bool(whole) or len(self._slots) >= self._settings.slots
        if taken:
            raise ProblemError.of(
                LATER,
                Reason.NO_FREE_SLOT,
                f"All {self._settings.slots} slots are in use, by {sorted(self._slots)}. Wait for one of them to end.",
            )
        if spec.kind is PolicyKind.adapter:
            adapter_shapes(self._config, spec)
        self._slots[name] = Slot(spec, hashlib.sha256(str(spec.seed).encode()).digest())
        return ()

    def close_slot(self, name: str) -> None:
        """Release the slot. No effect for an unknown name."""
        self._slots.pop(name, None)

    def restore(self, name: str, folder: Path, resume: bool, optimizer: bool = True) -> CheckpointProgress:
        """Load a checkpoint. Raises ProblemError if it does not fit the session or is damaged."""
        slot = self._slots[name]
        facts = checkpoint_facts.read_facts(folder)
        checkpoint_facts.check_shape(_facts(slot.spec), facts)
        is_adapter = slot.spec.kind is PolicyKind.adapter
        main = folder / (ADAPTER_WEIGHTS if is_adapter else MODEL_WEIGHTS)
        compared = resume and facts["reference"] == "copy"
        checkpoint_facts.check_files(folder, main.name, OPTIMIZER, RNG, *([REFERENCE] if compared else []))
        try:
            checkpoint_facts.check_tensors(self._shapes(slot.spec), read_shapes(main))
            read_shapes(folder / OPTIMIZER)
            slot.state = read_tensor(folder / RNG, STATE)
            slot.updates = int(facts["updates"]) if optimizer else 0
            if resume and GRADIENT in read_shapes(folder / RNG):
                slot.gradient = read_tensor(folder / RNG, GRADIENT)
            if resume:
                slot.kl_beta = facts["kl_beta"]
                slot.reference = {"pending": None, "base": b""}.get(facts["reference"])
                if compared:
                    slot.reference = read_tensor(folder / RNG, STATE_OF_REFERENCE)
        except ValueError as error:
            raise checkpoint_facts.mismatch(f"The checkpoint is damaged: {error}") from error
        return checkpoint_facts.progress_of(facts, checkpoint_facts.read_orchestrator_state(folder))

    def train(self, name: str, spec: SessionSpec, samples: Sequence[Sample], version: int) -> Units[dict[str, float]]:
        """Add the samples to the state and return metrics with the names of the real ones."""
        _check_columns(samples, int(self._config["vocab_size"]))
        yield
        started = time.perf_counter()
        slot, penalty = self._slots[name], spec.kl_penalty
        rate = learning_rate(spec, version, slot.updates)
        beta = None
        if penalty is not None and penalty.enabled:
            beta = penalty.beta if slot.kl_beta is None else slot.kl_beta
            if any(sample.loss is SampleLoss.policy for sample in samples):
                slot.kl_beta = beta
                if slot.reference is None:
                    slot.reference = slot.state if slot.updates else b""
        metrics = learning_metrics(samples, version, slot.updates, beta, self._mismatches(slot, samples, version))
        slot.state = _next_state(slot.state, rate, samples)
        slot.updates += 1
        time.sleep(max(0.0, self._step_seconds - (time.perf_counter() - started)))
        return metrics | step_metrics(samples, spec, rate, time.perf_counter() - started)

    def forward_backward(
        self, name: str, spec: SessionSpec, command: ForwardBackward, buffers: memoryview
    ) -> Units[tuple[dict[str, float], list[bytes]]]:
        """Add the command to the slot's gradient. The policy is uniform."""
        yield
        slot, vocabulary = self._slots[name], int(self._config["vocab_size"])
        if not command.forward_only:
            slot.gradient = hashlib.sha256(slot.gradient + command.loss.encode() + buffers).digest()
        logprob, targets = -math.log(vocabulary), [_count_targets(datum) for datum in command.datums]
        return {"loss:sum": -logprob * sum(targets)}, [array("f", [logprob] * count).tobytes() for count in targets]

    def optim_step(self, name: str, command: OptimStep) -> dict[str, float]:
        """Add the gradient to the state."""
        slot = self._slots[name]
        slot.state = hashlib.sha256(slot.state + slot.gradient + struct.pack("<d", command.learning_rate)).digest()
        slot.gradient = b""
        slot.updates += 1
        return {"optim/lr": command.learning_rate}

    def policy_files(self, name: str) -> Files:
        """Return the policy: an adapter, or the model's file with the state in its metadata. Raises ProblemError."""
        slot = self._slots[name]
        if slot.spec.kind is PolicyKind.adapter:
            return adapter_files(self._config, slot.spec, slot.state)
        folder = TempFolder(self._settings.scratch)
        with writing(folder):
            metadata = {"format": "pt", "state": slot.state.hex()}
            copy_with_metadata(self._settings.model_dir / MODEL_WEIGHTS, folder.path / MODEL_WEIGHTS, metadata)
            dtype = self._config.get("dtype") or self._config.get("torch_dtype") or "float32"
            copy_companions(self._settings.model_dir, folder.path, dtype)
        return folder

    def snapshot(self, name: str, progress: CheckpointProgress) -> Files:
        """Return the files of a checkpoint, with the names of the real ones. Raises ProblemError."""
        slot = self._slots[name]
        shapes = self._shapes(slot.spec)
        states = {STATE: _bytes(slot.state)}
        reference = {None: "pending", b"": "base"}.get(slot.reference, "copy")
        counted = {f"{key}/step": floats((), array("f", [slot.updates])) for key in shapes if slot.updates}
        small = {OPTIMIZER: encode(counted, {})}
        if slot.gradient:
            states[GRADIENT] = _bytes(slot.gradient)
        if slot.reference:
            states[STATE_OF_REFERENCE] = _bytes(slot.reference)
            small[REFERENCE] = encode(self._tensors(slot.spec, slot.reference), {})
        small[RNG] = encode(states, {})
        small |= checkpoint_facts.json_files(progress, _facts(slot.spec), slot.updates, slot.kl_beta, reference)
        files = self.policy_files(name)
        if not isinstance(files, TempFolder):
            return dict(files) | small
        with writing(files):
            for file, data in small.items():
                (files.path / file).write_bytes(data)
        return files

    def heartbeat(self) -> None:
        """There are no other processes."""

    def stop(self) -> None:
        """There are no other processes."""

    def _mismatches(self, slot: Slot, samples: Sequence[Sample], version: int) -> dict[int, list[float]]:
        sampling = slot.spec.sampling
        # The stub engine counts minTokens from the start of a turn, which a sample does not show.
        if self.agreement is None or slot.spec.kind is PolicyKind.weights or sampling.min_tokens:
            return {}
        adapter = adapter_files(self._config, slot.spec, slot.state)[ADAPTER_WEIGHTS]
        slot.policies[version] = hashlib.sha256(adapter).hexdigest()
        return self.agreement.mismatches(samples, slot.policies, sampling.temperature)

    def _shapes(self, spec: SessionSpec) -> dict[str, list[int]]:
        if spec.kind is PolicyKind.weights:
            return read_shapes(self._settings.model_dir / MODEL_WEIGHTS)
        return {name: list(shape) for name, shape in adapter_shapes(self._config, spec).items()}

    def _tensors(self, spec: SessionSpec, state: bytes) -> dict[str, Tensor]:
        if spec.kind is PolicyKind.weights:
            return {STATE_OF_REFERENCE: _bytes(state)}
        return adapter_tensors(adapter_shapes(self._config, spec), state)


def _facts(spec: SessionSpec) -> dict[str, Any]:
    if spec.kind is PolicyKind.weights:
        return checkpoint_facts.weights_facts(spec.model)
    return checkpoint_facts.shape_facts(spec.model, spec.lora.rank, spec.lora_alpha, spec.lora.target_modules)


def _next_state(state: bytes, rate: float, samples: Sequence[Sample]) -> bytes:
    digest = hashlib.sha256(state + struct.pack("<d", rate))
    # Without the versions, which differ between runs with another number of steps in flight.
    unversioned = [replace(sample, policy_version=0, turn_versions=None) for sample in samples]
    digest.update(samples_digest(unversioned).encode())
    return digest.digest()


def _check_columns(samples: Sequence[Sample], vocabulary: int) -> None:
    """Refuse what the trainer refuses. Raises ProblemError."""
    for index, sample in enumerate(samples):
        if min(sample.token_ids) < 0 or max(sample.token_ids) >= vocabulary:
            raise invalid_sample(index, f"tokenIds has a token outside the vocabulary of {vocabulary}")
        for name, column in (("logprobs", sample.logprobs), ("teacherLogprobs", sample.teacher_logprobs or ())):
            drawn = compress(column, sample.loss_mask)
            if sample.loss is SampleLoss.policy and not all(-math.inf < value <= LARGEST_LOGPROB for value in drawn):
                raise invalid_sample(index, f"{name} has a value that is not the logarithm of a probability")


def _count_targets(datum: DatumHeader) -> int:
    shapes = [tensor.shape for tensor in datum.tensors if tensor.name == "target_tokens"]
    return math.prod(shapes[0]) if shapes else datum.length


def _bytes(data: bytes) -> Tensor:
    return Tensor("U8", (len(data),), data)
