"""Files of a model in a local folder that trainer and engine need. Only file names are read."""

import json
from pathlib import Path

from rlrun_cli.terminal.errors import INVALID, CliError

CONFIG = "config.json"
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
TEMPLATE = "chat_template.jinja"
MAX_CONFIG = 16 * 1024**2
"""Bytes of a tokenizer's configuration that are read."""


def model_files(folder: Path) -> dict[str, Path]:
    """Return the files to upload by their names below the folder, without hidden ones such as caches of downloads.

    Raises CliError if something that trainer or engine need is missing.
    """
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder", "name the folder with the files of the model", code=INVALID)
    paths = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            paths[name.as_posix()] = path
    missing = [] if CONFIG in paths else [f"{CONFIG}: the architecture of the model"]
    if not any(name.endswith(".safetensors") for name in paths):
        missing.append("*.safetensors: the weights; other formats are not read")
    if not any(name in paths for name in TOKENIZERS):
        missing.append(f"{' or '.join(TOKENIZERS)}: the tokenizer")
    if missing:
        raise CliError(
            f"{folder} is not a complete model",
            "write it with save_pretrained() of the model and of its tokenizer",
            code=INVALID,
            details=missing,
        )
    return paths


def has_chat_template(files: dict[str, Path]) -> bool:
    """Return whether engines find a chat template beside the tokenizer."""
    if any(Path(name).name == TEMPLATE for name in files):
        return True
    path = files.get("tokenizer_config.json")
    if path is None or path.stat().st_size > MAX_CONFIG:
        return False
    try:
        configuration = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(configuration, dict) and bool(configuration.get("chat_template"))
