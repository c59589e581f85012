"""LoRA adapters in the file format of stock peft: adapter_model.safetensors and adapter_config.json.

Same tensors, same bytes: the SHA-256 of the safetensors file is the policy's digest.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from peft import LoraConfig
from rlrun.artifacts.layout import ADAPTER_WEIGHTS
from safetensors.torch import load, save

CONFIG = "adapter_config.json"
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class AdapterShape:
    """What two adapters must have in common to be exchangeable."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    dropout: float = 0.0

    def peft_config(self, model: str) -> LoraConfig:
        """peft's own description of it; `model` is the id under which users know the base model."""
        alpha = int(self.alpha) if float(self.alpha).is_integer() else self.alpha
        every = ALL_LINEAR in self.target_modules
        return LoraConfig(
            r=self.rank,
            lora_alpha=alpha,
            lora_dropout=self.dropout,
            target_modules=ALL_LINEAR if every else list(self.target_modules),
            bias="none",
            task_type="CAUSAL_LM",
            base_model_name_or_path=model,
        )


def adapter_files(tensors: Mapping[str, torch.Tensor], config: LoraConfig, model: str) -> dict[str, bytes]:
    """The two files of an adapter. `tensors` are named as `peft_name` says."""
    facts = {key: _plain(value) for key, value in config.to_dict().items()}
    facts |= {"base_model_name_or_path": model, "inference_mode": True}
    # safetensors keeps shared or strided memory out: contiguous copies on the CPU.
    weights = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata={"format": "pt"})
    return {ADAPTER_WEIGHTS: weights, CONFIG: (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode()}


def read_weights(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of an adapter_model.safetensors file."""
    tensors: dict[str, torch.Tensor] = load(data)
    return tensors


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of the weights, hexadecimal."""
    return hashlib.sha256(files[ADAPTER_WEIGHTS]).hexdigest()


def peft_name(parameter: str, adapter: str) -> str:
    """Name of a parameter in peft's files: under `base_model.model.`, without the adapter's own name."""
    return "base_model.model." + parameter.replace(f".{adapter}.", ".")


def _plain(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value)
    return getattr(value, "value", value)
