"""Checkpoints with all the state that a session needs to continue bit for bit.

    adapter_model.safetensors, adapter_config.json   the adapter, loadable by stock peft
    model.safetensors, config.json, tokenizer ...    instead, for a run that trains all weights: in float32
    optimizer.safetensors                            AdamW's moments, by parameter
    gradient.safetensors                             gradient of a client's commands that no update has applied yet
    reference.safetensors                            reference of the KL penalty, if it is not the base model: the
                                                     adapter in float32, or all weights in the trainer's dtype
                                                     (for all weights, all processes of the first node write these
                                                     three, as numbered files: see `divided_files`)
    rng.safetensors                                  states of torch's generators, of every process
    trainer.json                                     counters and the settings that must match
    orchestrator_state.json                          state of the orchestrator: progress, example buffer

There are no pickles, so reading another run's checkpoint executes no code. A trainer with a different number of
processes can load the checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import ADAPTER_WEIGHTS, MODEL_WEIGHTS
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save

from rlrun_trainer.artifacts import checkpoint_facts
from rlrun_trainer.artifacts.artifact_files import Files, TempFolder, writing_to
from rlrun_trainer.artifacts.checkpoint_facts import GRADIENT, OPTIMIZER, REFERENCE, RNG, CheckpointProgress, mismatch
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel, Reference
from rlrun_trainer.runtime.messages import MessageFormat, Refusal
from rlrun_trainer.runtime.process_group import ProcessGroup, copy_into
from rlrun_trainer.torch_backend import full_weights
from rlrun_trainer.torch_backend.divided_files import DividedFolder, StoredTensors

MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"


def snapshot(base: BaseModel, slot: AdapterSlot, progress: CheckpointProgress) -> Files:
    """Return the files of a checkpoint of the current state. All processes must call it.

    Later updates do not change the files. Only the first process returns files. Raises ProblemError if the disk is
    full.
    """
    world = base.world
    generators = [load(states) for states in world.all_gather_bytes(save(slot.rng))]
    random_states = save({_generator(d, rank): s for rank, rng in enumerate(generators) for d, s in rng.items()})
    facts = checkpoint_facts.json_files(progress, _shape(slot), slot.updates, slot.kl_beta, slot.reference.value)
    small = {RNG: random_states} | facts
    if slot.shape is None:
        return _weights_snapshot(base, slot, small) or {}
    if not world.is_leader:
        return {}
    # Adapters are the same on all processes.
    moments = {name: tensor.cpu().contiguous() for name, tensor in _moments(slot)}
    if slot.reference is Reference.copy:
        small[REFERENCE] = save({name: tensor.cpu().contiguous() for name, tensor in slot.copied.items()})
    gradient = {name: p.grad.cpu().contiguous() for name, p in slot.parameters.items() if p.grad is not None}
    if gradient:
        small[GRADIENT] = save(gradient)
    return slot.files() | small | {OPTIMIZER: save(moments)}


def _weights_snapshot(base: BaseModel, slot: AdapterSlot, small: Mapping[str, bytes]) -> TempFolder | None:
    with DividedFolder(base.world, base.loader.settings.scratch) as divided:
        full_weights.write_weights(base, slot, divided, torch.float32)
        divided.write(OPTIMIZER, divided.gather(dict(_moments(slot))))
        if slot.reference is Reference.copy:
            divided.write(REFERENCE, divided.gather(base.frozen_parameters()))
        if divided.folder is not None:
            with writing_to(divided.folder.path):
                for name, data in small.items():
                    (divided.folder.path / name).write_bytes(data)
    return divided.folder


def _moments(slot: AdapterSlot) -> Iterator[tuple[str, torch.Tensor]]:
    state = slot.optimizer.state
    for name, parameter in slot.parameters.items():
        for key in (*MOMENTS, STEP) if parameter in state else ():
            yield f"{name}/{key}", state[parameter][key].detach()


def restore(
    base: BaseModel, slot: AdapterSlot, folder: Path | None, resume: bool = True, optimizer: bool = True
) -> CheckpointProgress:
    """Load a checkpoint into a newly opened slot. All processes must call it; only the first process has the folder.

    If `resume` is True, this run saved the checkpoint and continues with the same reference of the KL penalty, and with
    the gradient that it had. Otherwise, in a warm start, the run gets its own reference: the weights from which its
    reinforcement learning starts. If `optimizer` is False, only the weights are loaded: moments, number of updates and
    random numbers stay in their initial state.

    Raises ProblemError on all processes if the checkpoint has a different shape or is damaged.
    """
    world = base.world
    source: _Source | None = None
    content: _Content | Refusal | None = None
    if folder is not None:
        try:
            source = _Source(base, slot, folder, resume)
            content = source.content
        except ProblemError as error:
            content = Refusal.of(error)
    content = world.broadcast(content, CONTENTS)
    if isinstance(content, Refusal):
        raise content.error
    facts = content.facts
    saved = load(world.broadcast_bytes(save(source.generators) if source else b""))
    for name, parameter in slot.parameters.items():
        _fill(world, parameter, source.tensors.pop(name) if source else None)
        if optimizer and name in content.moved:
            _fill_moments(world, slot, parameter, name, source)
    slot.is_new = False
    if optimizer:
        # A checkpoint of another device type or of fewer processes lacks a generator, which then keeps the seed's
        # state.
        for device in slot.rng:
            slot.rng[device] = saved.get(_generator(device, world.rank), slot.rng[device])
        slot.updates = int(facts["updates"])
    if resume:
        slot.kl_beta = facts["kl_beta"]
        slot.reference = Reference(facts["reference"])
        if slot.reference is Reference.copy:
            slot.copied = {name: p.detach().clone() for name, p in slot.parameters.items() if slot.shape is not None}
            for name, frozen in (slot.copied or base.frozen_parameters()).items():
                _fill(world, frozen, source.reference.pop(name) if source else None)
    for name, gradient in source.gradient.items() if source else ():
        slot.parameters[name].grad = gradient.to(base.device)
    return checkpoint_facts.progress_of(facts, content.orchestrator)


@dataclass(frozen=True)
class _Content:
    """Content of a checkpoint, without its tensors, as the first process sends it to the others."""

    facts: dict[str, Any]
    moved: list[str]
    """Parameters with optimizer moments."""
    orchestrator: dict[str, Any]


CONTENTS: MessageFormat[_Content | Refusal] = MessageFormat(_Content, Refusal)


class _Source:
    """Validated content of a checkpoint's folder. Raises ProblemError if it does not match the slot."""

    def __init__(self, base: BaseModel, slot: AdapterSlot, folder: Path, resume: bool) -> None:
        is_adapter = slot.shape is not None
        facts = checkpoint_facts.read_facts(folder)
        checkpoint_facts.check_shape(_shape(slot), facts)
        compared = resume and facts["reference"] == Reference.copy
        checkpoint_facts.check_files(folder, RNG, *([ADAPTER_WEIGHTS] if is_adapter else []))
        try:
            self.moments = StoredTensors(folder, OPTIMIZER)
            reference = StoredTensors(folder, REFERENCE) if compared else None
            stored = StoredTensors(folder, ADAPTER_WEIGHTS if is_adapter else MODEL_WEIGHTS)
            if is_adapter:
                self.tensors = slot.parameters_of({name: stored.read(name) for name in stored.names()})
            else:
                self.tensors = full_weights.read_model(folder, base.loader)
            self.generators = load_file(folder / RNG)
            self.reference = {name: reference.read(name) for name in reference.names()} if reference else {}
            # Only trainers of one process have such a gradient (see `client_step`).
            self.gradient = load_file(folder / GRADIENT) if resume and (folder / GRADIENT).is_file() else {}
        except SafetensorError as error:
            raise mismatch(f"The checkpoint is damaged: {error}") from error
        moved = [key.removesuffix(f"/{STEP}") for key in self.moments.names() if key.endswith(f"/{STEP}")]
        self.content = _Content(facts, moved, checkpoint_facts.read_orchestrator_state(folder))
        shapes = _shapes(slot.parameters)
        for tensors in (self.tensors, self.reference):
            if tensors:
                checkpoint_facts.check_tensors(shapes, _shapes(tensors))
        given = {name: shape for name, shape in shapes.items() if name in self.gradient}
        checkpoint_facts.check_tensors(given, _shapes(self.gradient))


def _fill(world: ProcessGroup, target: torch.Tensor, value: torch.Tensor | None) -> None:
    copy_into(target, world.broadcast_tensor(value, target.shape, torch.float32))


def _fill_moments(
    world: ProcessGroup, slot: AdapterSlot, parameter: torch.nn.Parameter, name: str, source: _Source | None
) -> None:
    step = source.moments.read(f"{name}/{STEP}") if source else None
    state = {STEP: world.broadcast_tensor(step, (), torch.float32)}
    for key in MOMENTS:
        state[key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        _fill(world, state[key], source.moments.read(f"{name}/{key}") if source else None)
    slot.optimizer.state[parameter] = state


def _generator(device: str, rank: int) -> str:
    return device if rank == 0 else f"{device}.{rank}"


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _shape(slot: AdapterSlot) -> dict[str, Any]:
    if slot.shape is None:
        return checkpoint_facts.weights_facts(slot.model)
    return checkpoint_facts.shape_facts(slot.model, slot.shape.rank, slot.shape.alpha, slot.shape.target_modules)
