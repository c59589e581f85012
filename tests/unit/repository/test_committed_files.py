"""What may be committed: locks without URLs, and files that belong to no particular machine."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
URL = re.compile(r"https?://")


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith(".lock")])
def test_lock_carries_no_url(name: str) -> None:
    text = (ROOT / name).read_text()
    assert re.search(r"^[A-Za-z0-9_.-]+==", text, re.MULTILINE), "an empty lock pins nothing"
    assert not URL.search(text)


@pytest.mark.parametrize("name", [name for name in TRACKED if name.endswith("Dockerfile")])
def test_dockerfile_names_no_host(name: str) -> None:
    assert not URL.search((ROOT / name).read_text())


def test_every_lock_is_checked() -> None:
    assert {"requirements/dev.lock", "requirements/trainer.lock"} <= set(TRACKED)


def test_every_module_is_linted() -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(r"^CODE := (.*)$", makefile, re.MULTILINE)
    assert found
    linted = tuple(found[1].split())
    modules = [name for name in TRACKED if name.endswith(".py")]
    assert [
        name for name in modules if not name.startswith(tuple(f"{folder}/" for folder in linted)) and name not in linted
    ] == []
