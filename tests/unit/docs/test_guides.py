"""Checks of the guides that need no cluster."""

import subprocess
from pathlib import Path

import pytest

from tests.support.guide import Block, parse

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
STEPS = {"trains", "settles", "lost", "runs", "platform"}
"""Steps that the tests implement: all but `platform` at both levels, apiserver and e2e."""


@pytest.mark.parametrize("name", ["continue.md", "operate.md", "quickstart.md", "models.md", "migration.md"])
def test_commands_are_bash_and_steps_are_known(name: str) -> None:
    entries = parse((GUIDES / name).read_text())
    assert len(entries) >= 2
    for entry in entries:
        if isinstance(entry, Block):
            done = subprocess.run(["bash", "-n", "-c", entry.text], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"line {entry.line}: {done.stderr}"
        else:
            assert entry.words[0] in STEPS, f"line {entry.line}"
