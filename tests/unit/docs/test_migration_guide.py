"""The commands of docs/guides/migration.md, which need no cluster."""

import sys
from pathlib import Path

import pytest

from tests.support.guide import Runner, install_commands
from tests.support.source_tree import ROOT


@pytest.mark.slow
def test_migration(tmp_path: Path) -> None:
    folder = tmp_path / "guide"
    folder.mkdir()
    path = install_commands(tmp_path / "bin", sys.executable, "false")
    nowhere = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    assert Runner(ROOT / "docs/guides/migration.md", folder, nowhere).run() == 3
