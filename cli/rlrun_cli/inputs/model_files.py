"""Finds the files in a model's folder that trainer and engine need. Opens only tokenizer_config.json."""

import json
from pathlib import Path

from rlrun_cli.inputs.model_config import CONFIG, MAX_BYTES
from rlrun_cli.terminal.errors import INVALID, CliError

TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
TEMPLATE = "chat_template.jinja"


def model_files(folder: Path) -> dict[str, Path]:
    """Return the files to upload, by their path in the folder. Hidden files such as download caches are left out.

    Raises CliError if `folder` is not a folder, or lacks a file that trainer or engine needs.
    """
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder", "specify the folder that contains the model's files", code=INVALID)
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
            "create the folder by calling save_pretrained() of the model and of the tokenizer",
            code=INVALID,
            details=missing,
        )
    return paths


def has_chat_template(files: dict[str, Path]) -> bool:
    """Return True if the model has a chat template where inference engines look for one."""
    if any(Path(name).name == TEMPLATE for name in files):
        return True
    path = files.get("tokenizer_config.json")
    if path is None or path.stat().st_size > MAX_BYTES:
        return False
    try:
        configuration = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(configuration, dict) and bool(configuration.get("chat_template"))
