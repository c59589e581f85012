"""A change that a test notices is killed, one that no test notices survives, and no file changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.mutants.test_judge import FEW_PLUGINS

CODE = """
import sys
from pathlib import Path
from tests.mutants.mutations import mutations
from tests.mutants.play import run
module, test, hang = Path("planted.py"), ["test_planted.py"], ["test_hang.py"]
print(run(test, 60).code)
for mutation in mutations(module.read_text()):
    print(mutation.after, run(test, 60, module, mutation.tree).code)
print(run(hang, 0.5).code)
"""


@pytest.mark.slow
def test_planted_changes(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def total(a, b):\n    print(a)\n    return a + b\n")
    before = planted.read_bytes()
    (tmp_path / "test_planted.py").write_text("import planted\ndef test_it(): assert planted.total(1, 2) == 3\n")
    (tmp_path / "test_hang.py").write_text("import time\ndef test_it(): time.sleep(600)\n")
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{root}", **FEW_PLUGINS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["0", "pass 0", "return None 1", "a - b 1", "-1"], done.stderr
    assert planted.read_bytes() == before
