"""Model of the size of Qwen3-0.6B, for the speed of a run: random weights, and the tokenizer of the example's model.

    PYTHONPATH=core python -m tests.gpu.large_model WEIGHTS_OF_THE_EXAMPLE FOLDER

The vocabulary is that of the tokenizer, because vLLM cannot turn other tokens into text: 0.44 G parameters are left.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoConfig, Qwen3ForCausalLM

from bench.trainer_batches import SHAPES

CONTEXT = 4096


def save(example: Path, folder: Path) -> Path:
    """Write the model. Returns the folder."""
    small = AutoConfig.from_pretrained(example)
    config = replace(SHAPES["0.6b"], vocabulary=small.vocab_size).config(CONTEXT)
    config.eos_token_id, config.pad_token_id = small.eos_token_id, small.pad_token_id
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for file in example.iterdir():
        if not (folder / file.name).exists() and file.suffix != ".safetensors":
            shutil.copy(file, folder)
    return folder


if __name__ == "__main__":
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.large_model", description=about)
    parser.add_argument("example", type=Path, help="folder with the example's model")
    parser.add_argument("folder", type=Path, help="folder to write")
    arguments = parser.parse_args()
    print(save(arguments.example, arguments.folder))
