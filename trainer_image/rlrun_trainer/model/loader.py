"""Loading of the model: device, precision, attention, gradient checkpointing and sharding."""

import os
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.service.containers import gpu_check
from rlrun.service.errors import ProblemError
from transformers import AutoModelForCausalLM
from transformers.utils import is_flash_attn_2_available
from transformers.utils.logging import disable_progress_bar

from rlrun_trainer.model.failure_guard import FailureGuard
from rlrun_trainer.model.sharding import DECODE, reshard, shard
from rlrun_trainer.runtime.process_group import ProcessGroup, group_of_one
from rlrun_trainer.runtime.settings import TrainerSettings

__all__ = ["DECODE", "Loader", "reshard"]


class Loader:
    """Loader of the model given by the settings. Raises ProblemError if device or settings are not available."""

    def __init__(self, settings: TrainerSettings, world: ProcessGroup) -> None:
        torch.set_num_threads(settings.threads)
        disable_progress_bar()
        self.settings = settings
        self.world = world
        self.guard = FailureGuard()
        self.device = device_of(settings, world.local_rank)
        self.dtype = dtype_of(settings.dtype, self.device.type)
        """Precision of computation and of the weights that the engines serve."""
        self.attention = attention_of(settings.attention, self.device.type, is_flash_attn_2_available())
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def load(self, trainable: bool = False) -> Any:
        """Load the model, frozen or with all weights trainable in float32. Raises ProblemError."""
        folder = self.settings.model_dir
        if not (folder / "config.json").is_file():
            raise ProblemError.of(
                UNPROCESSABLE,
                Reason.MODEL_MISSING,
                f"{folder} contains no config.json. Check the RLModel's source and the log of the fetch container.",
            )
        kept = torch.float32 if trainable else self.dtype
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=kept,
                attn_implementation=self.attention,
                local_files_only=True,
                trust_remote_code=False,
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ProblemError.of(
                UNPROCESSABLE, Reason.MODEL_LOAD_FAILED, f"Could not load the model in {folder}: {error}"
            ) from error
        model.requires_grad_(trainable)
        setattr(model, DECODE, types.MethodType(_decode, model))
        recompute = recomputes(self.settings.gradient_checkpointing, self.device.type)
        # FSDP also provides float32 weights with lower-precision computation, even for one process.
        if self.world.size > 1 or kept != self.dtype:
            group_of_one(self.device.type)
            shard(model, self.device, self.world.size, self.settings.shard_size, self.dtype)
            self.guard.protect(model.get_decoder().layers, recompute)
        elif recompute:
            model.activation_checkpointing_enable({"use_reentrant": False})
        model.to(self.device)
        _no_dropout(model)
        # transformers recomputes activations only in training mode. Without dropout, this mode has no other effect.
        model.train()
        return model


def device_of(
    settings: TrainerSettings,
    local_rank: int = 0,
    *,
    has_gpu: Callable[[], bool] = torch.cuda.is_available,
    problem: Callable[[int, int], str | None] | None = None,
) -> torch.device:
    """Return the device of this process. Raises ProblemError (DeviceMissing) if it is an unusable GPU.

    `has_gpu` and `problem` replace `torch.cuda.is_available` and `cuda_problem`.
    """
    gpus = settings.gpus if settings.gpus is not None else int(settings.device != "cpu" and has_gpu())
    if settings.device == "cpu" or (settings.device == "auto" and not gpus):
        return torch.device("cpu")
    message = (problem or cuda_problem)(max(gpus, 1), local_rank)
    if message is not None:
        raise ProblemError.of(UNPROCESSABLE, Reason.DEVICE_MISSING, message)
    return torch.device("cuda", local_rank)


def cuda_problem(gpus: int, local_rank: int) -> str | None:
    """Return the reason why this process cannot use its GPU, or None. Runs a test computation on the GPU."""
    node = os.environ.get(gpu_check.NODE_VARIABLE, "")
    found = replace(gpu_check.inspect(), image_cuda=torch.version.cuda or "")
    explained = gpu_check.problem(found, gpus, "trainer", node)
    if explained is not None:
        return explained
    try:
        torch.ones(1, device=torch.device("cuda", local_rank)).add_(1).item()
    except (AssertionError, RuntimeError) as error:
        return gpu_check.gpu_failure_message(error, "trainer", node)
    return None


def dtype_of(name: str, device: str) -> torch.dtype:
    """Return the precision for a setting on this type of device."""
    if name == "auto":
        return torch.bfloat16 if device == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def attention_of(name: str, device: str, flash: bool) -> str:
    """Return transformers' attention name for a setting. `flash` is True if flash attention is installed."""
    if name == "auto":
        return "flash_attention_2" if device == "cuda" and flash else "sdpa"
    return name


def recomputes(setting: str, device: str) -> bool:
    """Return True if the backward pass recomputes activations instead of storing them."""
    return setting == "on" or (setting == "auto" and device == "cuda")


def _decode(model: Any, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    output = model.get_decoder()(input_ids=input_ids, position_ids=position_ids, use_cache=False)
    states: torch.Tensor = output.last_hidden_state
    return states


def _no_dropout(model: Any) -> None:
    # The engine samples without dropout, so log-probs must be computed without it.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
