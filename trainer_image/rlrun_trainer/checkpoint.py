"""A checkpoint: everything a session needs to go on as if nothing had happened, to the bit.

    adapter_model.safetensors, adapter_config.json   the adapter, loadable by stock peft
    optimizer.safetensors                            AdamW's moments, by parameter
    rng.safetensors                                  states of torch's generators
    trainer.json                                     counters and the settings that have to match
    orchestrator_state.json                          what the orchestrator asked to keep: progress, buffer

No pickles: reading a checkpoint of another run executes nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save

from rlrun_trainer.adapters import WEIGHTS, AdapterShape, read_weights
from rlrun_trainer.problems import UNPROCESSABLE, Refused
from rlrun_trainer.slots import Slot

OPTIMIZER = "optimizer.safetensors"
RNG = "rng.safetensors"
TRAINER = "trainer.json"
ORCHESTRATOR = "orchestrator_state.json"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class Progress:
    """Where the session of a checkpoint stood."""

    step: int
    run_uid: str
    orchestrator_state: dict[str, Any]


def snapshot(slot: Slot, progress: Progress) -> dict[str, bytes]:
    """The checkpoint's files, as of now: later updates do not reach them."""
    state = slot.optimizer.state
    moments = {
        f"{name}/{key}": state[parameter][key].detach().cpu().contiguous()
        for name, parameter in slot.parameters.items()
        if parameter in state
        for key in MOMENTS
    }
    facts = {
        "step": progress.step,
        "run_uid": progress.run_uid,
        "updates": slot.updates,
        "kl_beta": slot.kl_beta,
        "model": slot.model,
        "rank": slot.shape.rank,
        "alpha": slot.shape.alpha,
        "target_modules": sorted(slot.shape.target_modules),
    }
    return slot.files() | {
        OPTIMIZER: save(moments),
        RNG: save(slot.rng),
        TRAINER: json.dumps(facts, indent=1).encode(),
        ORCHESTRATOR: json.dumps(progress.orchestrator_state).encode(),
    }


def restore(slot: Slot, files: Mapping[str, bytes]) -> Progress:
    """Puts a checkpoint into a freshly opened slot. Raises Refused when it is of another shape or is damaged."""
    missing = {WEIGHTS, OPTIMIZER, RNG, TRAINER} - files.keys()
    if missing:
        raise _mismatch(f"the checkpoint has no {', '.join(sorted(missing))}")
    facts = json.loads(files[TRAINER])
    _check_shape(slot.model, slot.shape, facts)
    weights = read_weights(files[WEIGHTS])
    if weights.keys() != slot.parameters.keys():
        raise _mismatch("the checkpoint's adapter has other layers than the model")
    for name, parameter in slot.parameters.items():
        if weights[name].shape != parameter.shape:
            raise _mismatch(f"{name} is {list(weights[name].shape)} in the checkpoint, {list(parameter.shape)} here")
    with torch.no_grad():
        for name, parameter in slot.parameters.items():
            parameter.copy_(weights[name])
    moments = load(files[OPTIMIZER])
    state = {
        index: {key: moments[f"{name}/{key}"] for key in MOMENTS}
        for index, name in enumerate(slot.parameters)
        if f"{name}/step" in moments
    }
    slot.optimizer.load_state_dict({"state": state, "param_groups": slot.optimizer.state_dict()["param_groups"]})
    saved = load(files[RNG])
    # A checkpoint made on another kind of device lacks this one's generator, which then keeps the seed's state.
    slot.rng |= {device: saved[device] for device in slot.rng if device in saved}
    slot.updates = int(facts["updates"])
    slot.kl_beta = facts.get("kl_beta")
    orchestrator = json.loads(files.get(ORCHESTRATOR, b"{}"))
    return Progress(int(facts["step"]), str(facts["run_uid"]), orchestrator)


def _check_shape(model: str, shape: AdapterShape, facts: Mapping[str, Any]) -> None:
    here = {
        "model": model,
        "rank": shape.rank,
        "alpha": shape.alpha,
        "target_modules": sorted(shape.target_modules),
    }
    differing = [
        f"{key} is {facts.get(key)} there, {value} here" for key, value in here.items() if facts.get(key) != value
    ]
    if differing:
        raise _mismatch("; ".join(differing) + ": give this run the checkpoint's values")


def _mismatch(what: str) -> Refused:
    return Refused(UNPROCESSABLE, "CheckpointMismatch", what)
