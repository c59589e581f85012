"""The base model, its adapters, and the version of its weights, as vLLM's routes change and list them."""

import asyncio
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.images.stub_engine.errors import EngineError

CONFIG, WEIGHTS = "config.json", "*.safetensors"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class ServedModel:
    """A model that requests can name."""

    name: str
    path: str
    weights: str
    """Digest of its weights."""
    parent: str | None = None


class ServedModels:
    """Models by name, base model first. Raises EngineError with the status and text of vLLM."""

    def __init__(self, name: str, folder: Path, max_lora_rank: int | None) -> None:
        self._base = ServedModel(name, str(folder), _digest([folder / CONFIG, *folder.glob(WEIGHTS)]))
        self._max_lora_rank = max_lora_rank
        self._adapters: dict[str, ServedModel] = {}
        self.version = "default"
        """Version of the weights, which `/update_weight_version` sets."""
        self.running = asyncio.Event()
        """Cleared while generation is paused."""
        self.running.set()

    def all(self) -> list[ServedModel]:
        """Return all models in the order of their start."""
        return [self._base, *self._adapters.values()]

    def find(self, name: str | None) -> ServedModel:
        """Return the model that a request names. None is the base model."""
        if name is None or name == self._base.name:
            return self._base
        if name not in self._adapters:
            message = f"The model `{name}` does not exist. Valid aliases: {self._base.name}."
            raise EngineError(404, "NotFoundError", message, "model")
        return self._adapters[name]

    def load_adapter(self, name: str, path: str) -> None:
        """Add the adapter at `path`."""
        if not name or not path:
            raise EngineError(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._adapters:
            message = (
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
            raise EngineError(400, "InvalidUserInput", message)
        try:
            rank = json.loads((Path(path) / ADAPTER_CONFIG).read_text())["r"]
            weights = _digest([Path(path) / ADAPTER_WEIGHTS])
        except (OSError, ValueError, KeyError) as error:
            message = f"Loading lora {name} failed: No adapter found for {path}"
            raise EngineError(404, "NotFoundError", message) from error
        if self._max_lora_rank is None or rank > self._max_lora_rank:
            message = (
                f"Call to add_lora method failed: LoRA rank {rank} is greater than max_lora_rank {self._max_lora_rank}."
            )
            raise EngineError(500, "InternalServerError", message)
        self._adapters[name] = ServedModel(name, path, weights, self._base.name)

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter."""
        if name not in self._adapters:
            raise EngineError(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        del self._adapters[name]

    def reload_weights(self, path: str) -> None:
        """Replace the base model's weights by those in the folder `path`. Raises FileNotFoundError."""
        files = list(Path(path).glob(WEIGHTS))
        if not files:
            raise FileNotFoundError(f"Cannot find any model weights with `{path}`")
        self._base = ServedModel(self._base.name, self._base.path, _digest(files))


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()
