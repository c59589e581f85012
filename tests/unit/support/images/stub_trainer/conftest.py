import json
import shutil
from pathlib import Path

import pytest

from tests.support.engine_wire import MODEL_FOLDER
from tests.support.images.stub_trainer.safetensors_file import Tensor, encode
from tests.support.trainer_requests import VOCABULARY

CONFIG = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "dtype": "float32",
}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_FOLDER / file, folder)
    weights = {"model.embed_tokens.weight": Tensor("F32", (VOCABULARY, 64), bytes(VOCABULARY * 64 * 4))}
    (folder / "model.safetensors").write_bytes(encode(weights, {"format": "pt"}))
    return folder
