"""Names of a model's layers in its checkpoint.

A multimodal checkpoint, such as Qwen3.5 with the architecture `Qwen3_5ForConditionalGeneration`, contains the text
model as a part, so its layers have a prefix there that the text model in memory lacks. Engines load the architecture in
config.json and map names from those of the checkpoint. vLLM silently ignores an adapter whose names match no layer.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlrun.storage.weights.safetensors_header import read_header

INDEX = "model.safetensors.index.json"
DECODER, HEAD = "model.", "lm_head"
"""Prefixes of names in memory, of a text model."""
DECODER_PREFIXES = (
    DECODER, "model.language_model.", "language_model.model.", "model.text_model.", "text_model.model.",
    "language_model.", "text_model.", "thinker.model.",
)  # fmt: skip
"""Prefixes of the same names in checkpoints, and in memory of models with towers. No tower has a name with one of them.
"""
HEADS = (HEAD, "language_model.lm_head", "text_model.lm_head", "thinker.lm_head")


@dataclass(frozen=True)
class CheckpointNames:
    """Mapping of names in memory to names in the checkpoint."""

    decoder: str = DECODER
    head: str = HEAD
    own_decoder: str = DECODER
    """Prefix of the decoder's names in memory."""

    @classmethod
    def of(cls, layers: Iterable[str], weights: Iterable[str]) -> "CheckpointNames":
        """Return the mapping for a model with these linear layers. `weights` are the names of the tensors in its files.

        Names without a counterpart in the checkpoint are unchanged.
        """
        stored, names = frozenset(weights), list(layers)
        longest_first = sorted(DECODER_PREFIXES, key=len, reverse=True)
        own = next((p for p in longest_first if any(name.startswith(p) for name in names)), DECODER)
        inner = [name.removeprefix(own) for name in names if name.startswith(own)]
        return cls(
            next((p for p in DECODER_PREFIXES if any(f"{p}{name}.weight" in stored for name in inner)), own),
            next((name for name in HEADS if f"{name}.weight" in stored), HEAD),
            own,
        )

    def of_layer(self, name: str) -> str:
        """Return the name of a layer or one of its parameters in the checkpoint."""
        if name.startswith(self.own_decoder):
            return self.decoder + name.removeprefix(self.own_decoder)
        if name == HEAD or name.startswith(f"{HEAD}."):
            return self.head + name.removeprefix(HEAD)
        return name


def stored_weights(folder: Path) -> list[str]:
    """Return the tensor names in a model's safetensors files. Raises OSError, or ValueError for a damaged file."""
    index = folder / INDEX
    if index.is_file():
        return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    return [name for file in sorted(folder.glob("*.safetensors")) for name in read_header(file)[1]]
