"""Files beside the weights in a Hugging Face folder: configuration, tokenizer, chat template, code."""

import json
import shutil
from pathlib import Path

CONFIG = "config.json"
COMPANIONS = (".json", ".txt", ".model", ".jinja", ".py")
"""Suffixes of the files copied beside the weights."""


def copy_companions(model_dir: Path, folder: Path, dtype: str) -> None:
    """Copy them for weights in `dtype`, such as float32."""
    for path in sorted(model_dir.iterdir()):
        if path.is_file() and path.suffix in COMPANIONS and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((model_dir / CONFIG).read_text(encoding="utf-8"))
    # Readers know only one of the two names.
    config |= dict.fromkeys(("dtype", "torch_dtype"), dtype)
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
