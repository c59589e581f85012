"""All weights of a model as a Hugging Face folder."""

from pathlib import Path

import torch
from rlrun.storage.layout import MODEL_WEIGHTS
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion

from rlrun_trainer.artifacts.artifact_files import TempFolder, writing
from rlrun_trainer.artifacts.checkpoint_facts import mismatch
from rlrun_trainer.artifacts.model_folder import ModelClass, copy_companions
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.loader import Loader, load_weights
from rlrun_trainer.runtime.process_group import full_tensor
from rlrun_trainer.torch_backend.divided_files import write_index


def write_model(base: BaseModel, slot: AdapterSlot, dtype: torch.dtype) -> TempFolder | None:
    """Write the slot's model to a folder, with weights in `dtype`. All processes must call it.

    Only the first process returns the folder, or raises ProblemError if its disk is full. The first process holds one
    copy of the weights in memory, or none if the weights are already on the CPU in `dtype`.
    """
    state: dict[str, torch.Tensor] = {}
    for name, tensor in stored_tensors(base, slot).items():
        whole = full_tensor(tensor.detach())
        if base.world.is_leader:
            state[name] = whole.to("cpu", dtype if name in slot.parameters else None)
    if not base.world.is_leader:
        return None
    folder = TempFolder(base.loader.settings.scratch)
    with writing(folder, SafetensorError):
        save_file(as_stored(base, state), folder.path / MODEL_WEIGHTS, metadata={"format": "pt"})
        write_companions(base, folder.path, dtype)
    return folder


def stored_tensors(base: BaseModel, slot: AdapterSlot) -> dict[str, torch.Tensor]:
    """Return the tensors stored in the model's files, keyed by their names in memory: the slot's weights, and buffers
    such as router biases.
    """
    stored = base.model.state_dict().keys()
    return {**slot.parameters, **{name: buffer for name, buffer in base.model.named_buffers() if name in stored}}


def as_stored(base: BaseModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights by their names in the model's files. `weights` has complete layers, by their names in memory."""
    # Some models have stacked experts in memory; on disk each expert has its own tensors.
    return {name: _own(tensor) for name, tensor in revert_weight_conversion(base.model, weights).items()}


def write_companions(base: BaseModel, folder: Path, dtype: torch.dtype) -> None:
    """Write the configuration of a model in `dtype`, and the files of its tokenizer."""
    copy_companions(base.loader.settings.model_dir, folder, str(dtype).removeprefix("torch."))


def read_model(folder: Path, base: Loader) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint by their names in memory, float32 on the CPU. `base` loads the base model.

    Raises ProblemError, also if the checkpoint's configuration belongs to a different class than the base model's.
    """
    try:
        theirs, ours = ModelClass.of(folder), ModelClass.of(base.settings.model_dir)
        if theirs != ours:
            raise mismatch(f"The checkpoint contains {theirs}, but the base model is {ours}. Use the same RLModel.")
        # A run writes its checkpoints, so neither pickled weights nor code in the folder may run in the next trainer.
        # The folder's configuration could name kernels to load, and its index could name other files. The base model's
        # configuration fits, because all shapes must be equal.
        write_index(folder)
        config = AutoConfig.from_pretrained(base.settings.model_dir, local_files_only=True, trust_remote_code=False)
        model = load_weights(folder, config, torch.float32, base.attention, use_safetensors=True)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise mismatch(f"Could not load the checkpoint's model: {error}") from error
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _own(tensor: torch.Tensor) -> torch.Tensor:
    # safetensors rejects views of a larger tensor.
    tensor = tensor.contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
