"""Backend-independent files of a checkpoint: their names, trainer.json, and the orchestrator's state."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.policy import PolicyKind
from rlrun.service.errors import ProblemError

ALL_LINEAR = "all-linear"
"""Target module that selects every linear layer that can be trained and served, except routed experts and the output
head, which must be named.
"""
OPTIMIZER = "optimizer.safetensors"
GRADIENT = "gradient.safetensors"
REFERENCE = "reference.safetensors"
RNG = "rng.safetensors"
TRAINER = "trainer.json"
ORCHESTRATOR = "orchestrator_state.json"


@dataclass(frozen=True)
class StepOutcome:
    """Result of a step, without its policy."""

    metrics: dict[str, float]
    batch_id: str


@dataclass(frozen=True)
class CheckpointProgress:
    """Progress stored in a checkpoint."""

    step: int
    run_uid: str
    orchestrator_state: dict[str, Any]
    state_step: int | None = None
    """Step of the orchestrator's state. None means `step`."""
    made: StepOutcome | None = None
    """Result of the newest step, set if the orchestrator may not have received it."""


def json_files(
    progress: CheckpointProgress, shape: Mapping[str, Any], updates: int, kl_beta: float | None, reference: str
) -> dict[str, bytes]:
    """Return the JSON files of a checkpoint.

    `shape` has the facts that must be equal in the checkpoint and in a session that loads it. `updates` is the number
    of optimizer steps, including those before a warm start. `kl_beta` and `reference` are the weight and the reference
    of the KL penalty.
    """
    facts = dict(shape) | {
        "step": progress.step,
        "run_uid": progress.run_uid,
        "orchestrator_step": progress.step if progress.state_step is None else progress.state_step,
        "updates": updates,
        "kl_beta": kl_beta,
        "reference": reference,
        "made": asdict(progress.made) if progress.made else None,
    }
    return {
        TRAINER: json.dumps(facts, indent=1).encode(),
        ORCHESTRATOR: json.dumps(progress.orchestrator_state).encode(),
    }


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of trainer.json. Raises ProblemError if the file is missing."""
    if not (folder / TRAINER).is_file():
        raise mismatch(f"The checkpoint has no {TRAINER}. Use a complete checkpoint.")
    facts: dict[str, Any] = json.loads((folder / TRAINER).read_bytes())
    return facts


def read_orchestrator_state(folder: Path) -> dict[str, Any]:
    """Return the orchestrator's state, or an empty dictionary if its file is missing."""
    path = folder / ORCHESTRATOR
    state: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return state


def progress_of(facts: Mapping[str, Any], orchestrator_state: dict[str, Any]) -> CheckpointProgress:
    """Return the progress stored in a checkpoint's files."""
    made = StepOutcome(**facts["made"]) if facts["made"] else None
    return CheckpointProgress(
        int(facts["step"]), str(facts["run_uid"]), orchestrator_state, int(facts["orchestrator_step"]), made
    )


def check_files(folder: Path, *names: str) -> None:
    """Raise ProblemError if one of the files is missing from the checkpoint."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise mismatch(f"The checkpoint has no {', '.join(missing)}. Use a complete checkpoint.")


def shape_facts(model: str, rank: int, alpha: float, target_modules: Sequence[str]) -> dict[str, Any]:
    """Return the facts that must be equal in an adapter's checkpoint and a session."""
    shape = {"rank": rank, "alpha": alpha, "target_modules": sorted(target_modules)}
    return {"kind": PolicyKind.adapter.value, "model": model} | shape


def weights_facts(model: str) -> dict[str, Any]:
    """Return the facts that must be equal in a checkpoint of all weights and a session."""
    return {"kind": PolicyKind.weights.value, "model": model}


def check_shape(here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Raise ProblemError if a checkpoint does not match the session. `here` has the session's facts, `there` the
    checkpoint's facts.
    """
    compared = set(here)
    if there["kind"] != here["kind"]:
        compared = {"kind"}
    elif ALL_LINEAR in (*here.get("target_modules", ()), *there.get("target_modules", ())):
        # A different spelling may select the same layers, so the layers are compared by the names of their tensors.
        compared.discard("target_modules")
    differing = [
        f"{key} is {there.get(key)} in the checkpoint and {value} in this run"
        for key, value in here.items()
        if key in compared and there.get(key) != value
    ]
    if differing:
        raise mismatch("; ".join(differing) + ". Use the checkpoint's values in this run.")


def check_tensors(here: Mapping[str, list[int]], there: Mapping[str, list[int]]) -> None:
    """Raise ProblemError if a checkpoint's tensors do not match the model's. Both arguments map names to shapes."""
    if there.keys() != here.keys():
        raise mismatch(
            "The checkpoint's tensors differ from this run's. Use the checkpoint's model and `lora.targetModules`."
        )
    for name, shape in here.items():
        if there[name] != shape:
            raise mismatch(f"{name} has shape {there[name]} in the checkpoint and {shape} in the model.")


def mismatch(what: str) -> ProblemError:
    """Return the error for a checkpoint that does not match the session."""
    return ProblemError.of(UNPROCESSABLE, Reason.CHECKPOINT_MISMATCH, what)
