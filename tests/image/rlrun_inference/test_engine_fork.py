"""How the engine's process is made, asked of vLLM's own configuration inside the CPU engine's image."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import os, sys
from vllm.engine.arg_utils import EngineArgs
EngineArgs(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True).create_engine_config()
from vllm.utils.system_utils import get_mp_context
print("method", get_mp_context().get_start_method())
"""
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


@pytest.mark.parametrize(("threads", "method"), [("1", "fork"), ("2", "spawn"), (None, "spawn")])
def test_the_engine_is_forked_where_there_is_one_thread(threads: str | None, method: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | {"HF_HUB_OFFLINE": "1"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert f"method {method}" in done.stdout.splitlines(), done.stderr[-2000:]
