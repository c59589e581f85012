"""Where vLLM looks into the model's class, asked of vLLM inside the CPU engine's image."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.image.rlrun_inference.test_engine_fork import MODEL

ASK = """
import subprocess, sys
run = subprocess.run
started = []
subprocess.run = lambda command, *args, **kwargs: (started.append(command), run(command, *args, **kwargs))[1]
from vllm.engine.arg_utils import EngineArgs
config = EngineArgs(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True).create_engine_config()
print("started", sum("registry" in str(command) for command in started))
print("class", config.model_config.architecture)
"""


def test_no_process_is_started_to_look_at_the_model_class(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    # An empty cache: what vLLM has looked up once it would not look up again.
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert "started 0" in lines, done.stderr[-2000:]
    assert "class Qwen3ForCausalLM" in lines
