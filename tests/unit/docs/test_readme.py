"""README.md: a valid run, the figures of the committed demo, and all folders."""

import json
import re
import subprocess

import pytest
import yaml
from rlrun.api.run import RLRunSpec

from demo.__main__ import summary
from tests.support.source_tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(readme: str) -> list[tuple[str, str]]:
    """Return language and text of all code blocks."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)


def missing_figures(readme: str, output: str) -> list[str]:
    """Return the lines of the demo's output that no code block of the README has."""
    shown = {line for _, text in code_blocks(readme) for line in text.splitlines()}
    return [line for line in output.splitlines() if line.startswith("  ") and line not in shown]


def folders_in(readme: str) -> set[str]:
    """Return the folders that a table of the README describes."""
    rows = [line.split("|")[1] for line in readme.splitlines() if line.startswith("| `")]
    return {folder for row in rows for folder in re.findall(r"`(\w+)/`", row)}


def test_the_run_of_the_readme_is_valid() -> None:
    (text,) = [text for language, text in code_blocks(README) if language == "yaml"]
    run = yaml.safe_load(text)
    assert run["kind"] == "RLRun"
    RLRunSpec.model_validate(run["spec"])


def test_the_figures_are_those_of_the_committed_demo(capsys: pytest.CaptureFixture[str]) -> None:
    summary(json.loads((ROOT / "docs" / "images" / "demo.json").read_text()), [])
    output = capsys.readouterr().out
    assert "held-out greedy" in output
    assert missing_figures(README, output) == []
    figures = re.findall(r"base -> (\d\.\d{3}) adapter", README)
    assert len(figures) == 3
    for figure in figures:
        assert missing_figures(README.replace(f"{figure} adapter", "1.001 adapter", 1), output) != []


def test_the_table_has_all_folders() -> None:
    command = ["git", "ls-tree", "--name-only", "HEAD"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {name for name in names if (ROOT / name).is_dir()}
    assert {folder for folder in folders if not folder.startswith(".")} == folders_in(README)
