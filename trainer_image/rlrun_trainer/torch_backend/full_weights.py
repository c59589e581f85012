"""All weights of a model as a Hugging Face folder."""

from pathlib import Path

import torch
from rlrun.storage.layout import MODEL_WEIGHTS
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion

from rlrun_trainer.artifacts.artifact_files import TempFolder, writing_to
from rlrun_trainer.artifacts.checkpoint_facts import mismatch
from rlrun_trainer.artifacts.model_folder import ModelClass, copy_companions
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.loader import Loader, load_weights
from rlrun_trainer.torch_backend.divided_files import DividedFolder, write_index


def write_model(base: BaseModel, slot: AdapterSlot, dtype: torch.dtype) -> TempFolder | None:
    """Write the slot's model to a folder, with weights in `dtype`. All processes must call it.

    Only the first process returns the folder. Raises ProblemError if the disk is full. Each process of the first node
    copies its part of the weights to memory, unless the weights are already on the CPU in `dtype`.
    """
    with DividedFolder(base.world, base.loader.settings.scratch) as divided:
        write_weights(base, slot, divided, dtype)
    return divided.folder


def write_weights(base: BaseModel, slot: AdapterSlot, divided: DividedFolder, dtype: torch.dtype) -> None:
    """Write the slot's model to the folder, with weights in `dtype`. All processes must call it. Raises ProblemError if
    the disk is full.
    """
    tensors = _stored_tensors(base, slot)
    dtypes = dict.fromkeys(slot.parameters, dtype)
    divided.write(MODEL_WEIGHTS, divided.gather(tensors, dtypes, lambda layer: _as_stored(base, layer)))
    # The other processes must not go on to collective operations after the first one has failed.
    with base.world.raise_together(in_step=False):
        if divided.folder is not None:
            with writing_to(divided.folder.path, SafetensorError):
                write_index(divided.folder.path)
                copy_companions(base.loader.settings.model_dir, divided.folder.path, str(dtype).removeprefix("torch."))


def _stored_tensors(base: BaseModel, slot: AdapterSlot) -> dict[str, torch.Tensor]:
    """Return the tensors stored in the model's files, keyed by their names in memory: the slot's weights, and buffers
    such as router biases.
    """
    stored = base.model.state_dict().keys()
    return {**slot.parameters, **{name: buffer for name, buffer in base.model.named_buffers() if name in stored}}


def _as_stored(base: BaseModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights by their names in the model's files. `weights` has complete layers, by their names in memory."""
    # Some models have stacked experts in memory; on disk each expert has its own tensors.
    return {name: _own(tensor) for name, tensor in revert_weight_conversion(base.model, weights).items()}


def read_model(folder: Path, base: Loader) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint by their names in memory, float32 on the CPU. `base` is the base
    model's loader.

    Raises ProblemError if they cannot be loaded, or if the checkpoint has another model class than the base model.
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
