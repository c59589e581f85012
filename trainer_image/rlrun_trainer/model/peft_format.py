"""LoRA adapters in stock peft's file format: adapter_model.safetensors and adapter_config.json.

Equal tensors give equal bytes: the SHA-256 of the safetensors file is the policy's digest.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from peft import LoraConfig
from rlrun.storage.layout import ADAPTER_WEIGHTS
from safetensors.torch import save

CONFIG = "adapter_config.json"
NAME_PREFIX = "base_model.model."
"""Prefix of names in peft's files."""


@dataclass(frozen=True)
class AdapterShape:
    """Configuration of an adapter. All but the dropout must match between a checkpoint's adapter and a slot."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    dropout: float = 0.0

    def peft_config(self, model: str, modules: Sequence[str], parameters: Sequence[str] = ()) -> LoraConfig:
        """Return the peft configuration for these modules and parameters. `model` is the base model's id for users."""
        alpha = int(self.alpha) if float(self.alpha).is_integer() else self.alpha
        return LoraConfig(
            r=self.rank,
            lora_alpha=alpha,
            # peft supports no dropout on parameters. The files are for inference, where dropout has no effect.
            lora_dropout=0.0 if parameters else self.dropout,
            target_modules=list(modules),
            target_parameters=list(parameters) or None,
            bias="none",
            task_type="CAUSAL_LM",
            base_model_name_or_path=model,
        )


def adapter_files(tensors: Mapping[str, torch.Tensor], config: LoraConfig, model: str) -> dict[str, bytes]:
    """Return the two files of an adapter. `tensors` are on the CPU and have names made by `tensor_name`."""
    facts = {key: _plain(value) for key, value in config.to_dict().items()}
    facts |= {"base_model_name_or_path": model, "inference_mode": True}
    # safetensors rejects strided memory.
    weights = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"})
    return {ADAPTER_WEIGHTS: weights, CONFIG: (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode()}


def digest(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of the weights in hexadecimal."""
    return hashlib.sha256(files[ADAPTER_WEIGHTS]).hexdigest()


def tensor_name(layer: str, factor: str) -> str:
    """Return the name in peft's files of a layer's factor, which is A or B."""
    return f"{NAME_PREFIX}{layer}.lora_{factor}.weight"


def _plain(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return getattr(value, "value", value)
