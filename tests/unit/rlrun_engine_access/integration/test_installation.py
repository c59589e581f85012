"""The copy that the init container makes, imported as the engine's interpreter does it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import PYTHONPATH

IMPORT = """
import sys
import rlrun_engine_access.middleware as found
print(found.__file__)
print(sorted(name for name in sys.modules if name.split(".")[0] == "rlrun"))
print(found.EngineAccess.__name__)
from importlib.metadata import entry_points
print([entry.load().__name__ for entry in entry_points(group="vllm.general_plugins")])
"""


def python(*arguments: str, path: str, folder: Path) -> str:
    environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_copy_works_without_the_rest_of_the_project(tmp_path: Path) -> None:
    for _ in range(2):
        python("-m", "rlrun_engine_access", str(tmp_path), path=PYTHONPATH, folder=Path("/"))
    copied = tmp_path / "rlrun_engine_access"
    modules = {
            "__init__", "admission", "asgi", "body", "engine_usage", "gpu_check", "head_adapters", "middleware",
            "order", "response_usage", "shared_pool",
        }  # fmt: skip
    assert {path.stem for path in copied.iterdir()} == modules
    told = python("-c", IMPORT, path=str(tmp_path), folder=Path("/")).splitlines()
    assert told == [str(copied / "middleware.py"), "[]", "EngineAccess", "['register']"]
    # Isolated: neither the project nor an installed package is on its path.
    assert python("-I", "-S", str(copied / "gpu_check.py"), "inference", path="", folder=Path("/")) == (
        "No GPU is required\n"
    )
