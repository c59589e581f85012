"""All weights of a model as a Hugging Face folder with one model.safetensors."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import MODEL_WEIGHTS
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from rlrun_trainer.artifacts.artifact_files import TempFolder, writing
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.runtime.process_group import full_tensor

CONFIG = "config.json"
COMPANIONS = (".json", ".txt", ".model", ".jinja", ".py")
"""Suffixes of the files copied beside the weights: configuration, tokenizer, chat template, code."""


def write_model(base: BaseModel, slot: AdapterSlot, dtype: torch.dtype) -> TempFolder | None:
    """Write the slot's model to a folder, with weights in `dtype`. All processes must call it.

    Only the first process returns the folder; it raises ProblemError if its disk is full. It holds one copy of the
    weights in memory, and none if they are already on the CPU in `dtype`.
    """
    state: dict[str, torch.Tensor] = {}
    for name, parameter in slot.parameters.items():
        tensor = full_tensor(parameter.detach())
        if base.world.is_leader:
            state[name] = tensor.to("cpu", dtype)
    if not base.world.is_leader:
        return None
    settings = base.loader.settings
    folder = TempFolder(settings.scratch)
    # Some models have stacked experts in memory; on disk each expert has its own tensors.
    stock = revert_weight_conversion(base.model, state)
    del state
    with writing(folder):
        own = {name: _own(tensor) for name, tensor in stock.items()}
        save_file(own, folder.path / MODEL_WEIGHTS, metadata={"format": "pt"})
        _write_companions(settings.model_dir, folder.path, dtype)
    return folder


def read_model(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a folder by their names in memory, float32 on the CPU. Raises ProblemError."""
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ProblemError.of(
            UNPROCESSABLE, Reason.CHECKPOINT_MISMATCH, f"Could not load the checkpoint's model: {error}"
        ) from error
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _own(tensor: torch.Tensor) -> torch.Tensor:
    # safetensors rejects views of a larger tensor.
    tensor = tensor.contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _write_companions(model_dir: Path, folder: Path, dtype: torch.dtype) -> None:
    for path in sorted(model_dir.iterdir()):
        if path.is_file() and path.suffix in COMPANIONS and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((model_dir / CONFIG).read_text(encoding="utf-8"))
    # Readers know only one of the two names.
    config |= dict.fromkeys(("dtype", "torch_dtype"), str(dtype).removeprefix("torch."))
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
