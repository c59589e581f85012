"""Checks of the guides that need no cluster."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.guide import FENCE, SHOWN, Block, parse
from tests.support.source_tree import ROOT

GUIDES = ROOT / "docs" / "guides"
STEPS = {"trains", "settles", "lost", "buries", "runs", "platform", "follows"}
"""Steps that the tests implement: all but `platform` and `follows` at both levels, apiserver and e2e."""
PROGRAMS = re.compile(r"^(?:\$ )?(?:rlrun|kubectl|helm|pip|make|curl|prime|export|python)(?= )", re.MULTILINE)
ELSEWHERE = {
    "api.md": "tests/unit/docs/test_api_guide.py",
    "hosted-clients.md": "tests/apiserver/rlrun_server/test_hosted_clients.py",
    "tinker.md": "tests/e2e/test_tinker.py",
}
"""Guides whose commands a test of their own sends."""
QUICKSTART = (GUIDES / "quickstart.md").read_text()


def names(runs: str) -> list[str]:
    """Return the guides that tests run: those that they name, and those that the quickstart's step names."""
    tests = "\n".join(
        file.read_text() for level in ("apiserver/docs", "unit/docs") for file in (ROOT / "tests" / level).glob("*.py")
    )
    return sorted(
        {*re.findall(r'follow\("([\w-]+\.md)"', tests), *re.findall(r"guides/([\w-]+\.md)", tests), *runs.split()}
    )


RUN = [
    name
    for name in names(" ".join(re.findall(r"<!-- test: follows (.+?) -->", QUICKSTART)))
    if (GUIDES / name).exists() and name not in ELSEWHERE
]


def commands(text: str) -> list[str]:
    """Return the commands in blocks that are not run, without their comments."""
    found = []
    for fence in FENCE.finditer(text):
        if fence[1] not in ("bash", SHOWN) and PROGRAMS.search(fence[3]):
            found += [line.split(" #")[0].strip() for line in fence[3].splitlines() if PROGRAMS.match(line)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_commands_are_bash_and_steps_are_known(name: str) -> None:
    entries = parse((GUIDES / name).read_text())
    assert entries
    for entry in entries:
        if isinstance(entry, Block):
            done = subprocess.run(["bash", "-n", "-c", entry.text], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"line {entry.line}: {done.stderr}"
        else:
            assert entry.words[0] in STEPS, f"line {entry.line}"


@pytest.mark.parametrize("guide", sorted(GUIDES.glob("*.md")), ids=lambda guide: guide.name)
def test_a_test_runs_every_command(guide: Path) -> None:
    text = guide.read_text()
    if guide.name in ELSEWHERE:
        assert not [entry for entry in parse(text) if isinstance(entry, Block)]
        return
    assert guide.name in RUN
    run_elsewhere = " ".join(entry.text for entry in parse(QUICKSTART) if isinstance(entry, Block)).split()
    left = [line for line in commands(text) if line.replace(" -n team", "") not in " ".join(run_elsewhere)]
    # Requests with an API key to a published server: test_api_guide.py sends them.
    assert [line for line in left if "OPENAI_" not in line] == []


def test_a_planted_command_is_found() -> None:
    assert commands("```\nrlrun stop first   # ends it\n```\n") == ["rlrun stop first"]
    assert commands("```\nError: rl.toml has 2 problems\n```\n") == []
    assert commands("```bash\nrlrun stop first\n```\n") == []


def test_the_hosted_clients_run_the_commands_of_their_guide() -> None:
    test = (ROOT / ELSEWHERE["hosted-clients.md"]).read_text() + (ROOT / "tests/e2e/test_hosted_clients.py").read_text()
    lines = re.findall(r"^prime (.+)$", (GUIDES / "hosted-clients.md").read_text(), re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        words = [word for word in line.split()[:2] if not word.startswith("-")]
        assert ", ".join(f'"{word}"' for word in words) in test, line
