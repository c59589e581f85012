"""Names of a model's layers in its checkpoint.

The names in transformers may differ from the names in the checkpoint's files: the text model of a multimodal checkpoint
lacks the files' prefix, and some families have different names throughout, such as `shared_experts` for Hy 3's
`shared_mlp`. Engines load the architecture in config.json and map the checkpoint's names to their own. vLLM silently
ignores an adapter whose names match no layer.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.storage.weights.safetensors_header import read_header

INDEX = "model.safetensors.index.json"
EXPERTS = ".experts."
"""Part of the name of every tensor of routed experts. A checkpoint may have 100,000 such tensors."""
FIRST_EXPERT = re.compile(r"(.+\.experts)\.0\.(\w+)\.weight")
"""Pattern for the name of a weight of a block's first expert. The other experts have the same projections."""
JOINED_EXPERTS = re.compile(r"(.+\.experts)\.(\w+)")
"""Pattern for the name of a weight that joins all experts of a block."""


@dataclass(frozen=True)
class StoredExperts:
    """Names of the routed experts of one block in the checkpoint."""

    module: str
    """Name of the module that contains the experts."""
    projections: Mapping[str, tuple[str, ...]]
    """Names of each expert's projections in the checkpoint, in the order in which one parameter in memory joins them,
    by the name of that parameter. Empty if the checkpoint's parameters are joined, too.
    """


@dataclass(frozen=True)
class CheckpointNames:
    """Mapping of layers in memory to layers in the checkpoint."""

    layers: Mapping[str, str]
    """Names in the checkpoint by names in memory. Empty if the checkpoint has no safetensors files."""
    experts: Mapping[str, StoredExperts] = field(default_factory=dict)
    """Routed experts, by the in-memory name of the module that contains them."""

    @classmethod
    def of(
        cls, weights: Iterable[str], in_memory: Callable[[str], str | None], joined: Callable[[str], tuple[str, int]]
    ) -> "CheckpointNames":
        """Return the mapping for a checkpoint with tensors of these names.

        `in_memory` maps a tensor's name in the checkpoint to its name in memory, or to None if loading the model merges
        the tensor with others or splits it. `joined` maps the name of an expert's tensor to the name of the parameter
        in memory that contains it, and to its index among the tensors that the parameter joins.
        """
        weights = list(weights)
        pairs = ((in_memory(weight), weight) for weight in weights if EXPERTS not in weight)
        layers = {own.rpartition(".")[0]: stored.rpartition(".")[0] for own, stored in pairs if own is not None}
        return cls(layers, _experts((weight for weight in weights if EXPERTS in weight), joined))

    def of_layer(self, name: str) -> str:
        """Return the name of a layer in the checkpoint, or `name` itself if the checkpoint has no such layer."""
        return self.layers.get(name, name)

    def for_peft(self, name: str) -> str:
        """Return the name by which stock peft finds the layer in the architecture of config.json: the name in the
        checkpoint if only the prefixes differ, otherwise the name in memory.
        """
        stored = self.of_layer(name)
        return stored if stored.endswith(name.partition(".layers.")[2]) else name

    def lack(self, name: str) -> bool:
        """Return True if the checkpoint's names are known and do not include layer `name`, so that no engine would find
        the layer.
        """
        return bool(self.layers) and name not in self.layers


def _experts(weights: Iterable[str], joined: Callable[[str], tuple[str, int]]) -> dict[str, StoredExperts]:
    modules: dict[str, str] = {}
    places: dict[str, dict[str, dict[int, str]]] = {}
    for weight in weights:
        single = FIRST_EXPERT.fullmatch(weight)
        match = single or JOINED_EXPERTS.fullmatch(weight)
        if match is None:
            continue
        parameter, place = joined(weight)
        block, _, leaf = parameter.rpartition(".")
        modules[block] = match[1]
        projections = places.setdefault(block, {})
        if single is not None:
            projections.setdefault(leaf, {})[place] = single[2]
    return {
        block: StoredExperts(
            module, {leaf: tuple(parts[place] for place in sorted(parts)) for leaf, parts in places[block].items()}
        )
        for block, module in modules.items()
    }


def stored_weights(folder: Path) -> list[str]:
    """Return the tensor names in a model's safetensors files. Raises OSError, or ValueError for a damaged file."""
    index = folder / INDEX
    if index.is_file():
        return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    return [name for file in sorted(folder.glob("*.safetensors")) for name in read_header(file)[1]]
