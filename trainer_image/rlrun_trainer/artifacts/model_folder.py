"""Files other than the weights in a Hugging Face folder: configuration, tokenizer, chat template and code."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

CONFIG = "config.json"
COMPANIONS = (".json", ".txt", ".model", ".jinja", ".py")
"""Suffixes of the files that are copied along with the weights."""


@dataclass(frozen=True)
class ModelClass:
    """Class of the model in a folder, which determines the code that loads its weights."""

    model_type: str
    architectures: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> "ModelClass":
        """Read the folder's configuration. Raises ValueError or OSError if it cannot be read."""
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG} is not a JSON object")
        return cls(str(config.get("model_type")), tuple(map(str, config.get("architectures") or ())))

    def __str__(self) -> str:
        return f"{', '.join(self.architectures) or 'a model without architectures'} (model_type {self.model_type})"


def copy_companions(model_dir: Path, folder: Path, dtype: str) -> None:
    """Copy the configuration and tokenizer files of a model, and set the configuration's dtype, such as float32."""
    for path in sorted(model_dir.iterdir()):
        if path.is_file() and path.suffix in COMPANIONS and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((model_dir / CONFIG).read_text(encoding="utf-8"))
    # Some readers know only one of the two names.
    config |= dict.fromkeys(("dtype", "torch_dtype"), dtype)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
