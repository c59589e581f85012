"""Model loading: device, precision, attention, gradient checkpointing and sharding."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.service.containers import gpu_check
from rlrun.service.errors import ProblemError
from safetensors import SafetensorError, safe_open
from torch.distributed.device_mesh import DeviceMesh
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import is_flash_attn_2_available
from transformers.utils.logging import disable_progress_bar

from rlrun_trainer.artifacts.checkpoint_names import CheckpointNames, stored_weights
from rlrun_trainer.artifacts.model_folder import ModelClass
from rlrun_trainer.model import varlen_attention
from rlrun_trainer.model.decoder import add_decode, decoder_of
from rlrun_trainer.model.device_memory import is_out_of_memory, out_of_memory
from rlrun_trainer.model.failure_guard import FailureGuard
from rlrun_trainer.model.loading_rules import LoadingRules
from rlrun_trainer.model.sharding import before_reading, is_sharded, mesh_of, shard
from rlrun_trainer.runtime.process_group import ProcessGroup, group_of_one
from rlrun_trainer.runtime.settings import TrainerSettings


class Loader:
    """Loader for the model given by the settings. Raises ProblemError if the device cannot be used."""

    def __init__(self, settings: TrainerSettings, world: ProcessGroup) -> None:
        torch.set_num_threads(settings.threads)
        disable_progress_bar()
        self.settings = settings
        self.world = world
        self.guard = FailureGuard()
        self.device = device_of(settings, world.local_rank)
        self.dtype = dtype_of(settings.dtype, self.device.type)
        """Precision of computation and of the weights that the engines serve."""
        self.attentions = attentions_of(settings.attention, self.device.type, is_flash_attn_2_available())
        """Implementations of attention to try, in this order."""
        self.attention = self.attentions[0]
        self.names = CheckpointNames({})
        """Names of the loaded model's layers in its files."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    @property
    def tries_varlen(self) -> bool:
        """True if the model should use `varlen` attention if it is exact. By default, True on GPUs, for which the
        kernel is made.
        """
        setting = self.settings.attention
        return setting == varlen_attention.NAME or (setting == "auto" and self.device.type == "cuda")

    @property
    def memory_advice(self) -> str:
        """Sentence that explains how to give the trainer more memory."""
        advice = "Give the trainer more memory or GPUs"
        if self.settings.shard_size and self.settings.shard_size < self.world.size:
            advice += f", or set the RLModel's trainer.shardSize to {self.world.size}, the total number of GPUs"
        return f"{advice}."

    def load(self, trainable: bool = False) -> Any:
        """Load the model, frozen or with all weights trainable in float32. All processes must call it.

        If one process fails, all processes raise ProblemError.
        """
        dtype = torch.float32 if trainable else self.dtype
        with self.world.raise_together(), self.explain_failures():
            mesh = self._mesh(dtype)
        # Reading has no collective operations, so no process waits for one that cannot read its files.
        with self.world.raise_together(in_step=False), self.explain_failures():
            model = self._read(dtype, mesh)
        with self.world.raise_together(), self.explain_failures():
            return self._place(model, mesh, trainable)

    @contextmanager
    def explain_failures(self) -> Iterator[None]:
        """Context in which every failure, except one of torch.distributed, raises ProblemError with the cause."""
        try:
            yield
        except (ProblemError, torch.distributed.DistError):
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> ProblemError:
        """Return the ProblemError for the failure."""
        folder, cause = self.settings.model_dir, str(error).rstrip(".")
        if is_out_of_memory(error):
            return out_of_memory(f"The model does not fit into the trainer's memory: {cause}. {self.memory_advice}")
        if isinstance(error, OSError | SafetensorError):
            message = f"Could not load the model in {folder}: {cause}."
            return ProblemError.of(UNPROCESSABLE, Reason.MODEL_LOAD_FAILED, message)
        message = f"The trainer cannot load or compute {_family(folder)}: {type(error).__name__}: {cause}."
        return ProblemError.of(UNPROCESSABLE, Reason.MODEL_UNSUPPORTED, f"{message} Use another model.")

    def _mesh(self, dtype: torch.dtype) -> DeviceMesh | None:
        # FSDP also provides float32 weights with lower-precision computation, even for one process.
        if self.world.size == 1 and dtype == self.dtype:
            return None
        group_of_one(self.device.type)
        return mesh_of(self.device, self.world.size, self.settings.shard_size)

    def _read(self, dtype: torch.dtype, mesh: DeviceMesh | None) -> Any:
        folder = self.settings.model_dir
        if not (folder / "config.json").is_file():
            raise ProblemError.of(
                UNPROCESSABLE,
                Reason.MODEL_MISSING,
                f"{folder} contains no config.json. Check the RLModel's source and the log of the fetch container.",
            )
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        try:
            stored = stored_weights(folder)
        except ValueError as error:
            raise SafetensorError(str(error)) from error

        def prepare(model: Any) -> None:
            rules = LoadingRules(model)
            self.names = rules.names(stored)
            if mesh is not None and rules.allow_parts(shapes_of(folder, stored), mesh.shape[-1]):
                # transformers ties weights once they are read. FSDP must know beforehand that they are one parameter.
                model.tie_weights(recompute_mapping=False)
                shard(model, mesh, self.dtype, rules.dtypes(dtype))

        with before_reading(prepare) as arguments:
            return load_weights(folder, config, dtype, self.attention, **arguments)

    def _place(self, model: Any, mesh: DeviceMesh | None, trainable: bool) -> Any:
        model.requires_grad_(trainable)
        recompute = recomputes(self.settings.gradient_checkpointing, self.device.type)
        if mesh is None:
            add_decode(model)
        elif not is_sharded(model):
            shard(model, mesh, self.dtype, {parameter.dtype for parameter in model.parameters()})
        if mesh is not None:
            self.guard.protect(decoder_of(model).layers, recompute)
        elif recompute:
            model.activation_checkpointing_enable({"use_reentrant": False})
        model.to(self.device)
        _disable_noise(model)
        return model


def load_weights(folder: Path, config: Any, dtype: torch.dtype, attention: str, **arguments: Any) -> Any:
    """Return the transformers model with the weights in the folder. Raises ValueError if the folder lacks weights.

    `arguments` are passed to `from_pretrained`.
    """
    # Some multimodal families have no text model in transformers. Without images, their full model computes the same.
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    model, report = (AutoModelForCausalLM if known else AutoModelForImageTextToText).from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        **arguments,
    )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"{type(model).__name__} needs weights that the files do not contain: {len(missing)}, such as {missing[0]}"
        )
    return model


def shapes_of(folder: Path, weights: Iterable[str]) -> dict[str, list[int]]:
    """Return the shapes of the tensors `weights` by name, from the folder's safetensors files. Raises OSError or
    SafetensorError.
    """
    shapes: dict[str, list[int]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return {name: shapes[name] for name in weights if name in shapes}


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


def attentions_of(name: str, device: str, flash: bool) -> tuple[str, ...]:
    """Return the attention implementations of transformers to try for a setting, in order. `varlen` is compared with
    the first that works. `flash` is True if flash attention is installed.
    """
    if name == varlen_attention.NAME:
        return ("sdpa", "eager")
    if name != "auto":
        return (name,)
    return ("flash_attention_2", "sdpa", "eager") if device == "cuda" and flash else ("sdpa", "eager")


def recomputes(setting: str, device: str) -> bool:
    """Return True if the backward pass recomputes activations instead of storing them."""
    return setting == "on" or (setting == "auto" and device == "cuda")


def _family(folder: Path) -> str:
    try:
        return str(ModelClass.of(folder))
    except (OSError, ValueError):
        return "a model with an unreadable config.json"


def _disable_noise(model: Any) -> None:
    """Make the model compute log probabilities as the engine does: without dropout, jitter or sampled experts."""
    model.eval()
    for module in model.modules():
        # transformers recomputes layers only in training mode.
        module.training = isinstance(module, GradientCheckpointingLayer)
        for owner in (module, getattr(module, "config", None)):
            for name, value in list(vars(owner).items()) if owner is not None else ():
                if "dropout" in name and isinstance(value, float):
                    setattr(owner, name, 0.0)
