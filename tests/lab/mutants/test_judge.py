"""A module reaches the goal only by tests that check it, and none is judged blindly."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.source_tree import ROOT

MODULE = "def capped(number, most):\n    if number > most:\n        return most\n    return number\n"
THOROUGH = "from planted import capped\ndef test_it(): assert [capped(n, 2) for n in (1, 2, 3)] == [1, 2, 2]\n"
WEAK = "from planted import capped\ndef test_it(): capped(1, 2)\n"
JUDGE = """
import json, sys, time
from pathlib import Path
from tests.mutants import judge, play
{before}
result = judge.judge(Path.cwd(), "planted.py", ["test_planted.py"], 30, 0, time.monotonic() + {seconds})
print(json.dumps(dict(result.to_json(), reached=result.reached)))
"""
NEVER_APPLIED = """
def without_change(self, module):
    exec(compile(open("planted.py").read(), "planted.py", "exec"), module.__dict__)
play._Changed._execute = without_change
"""
APPLIED_ONLY_IN_WORDS = """
import os
def without_change(self, module):
    os.write(self.applied, b"x")
    exec(compile(open("planted.py").read(), "planted.py", "exec"), module.__dict__)
play._Changed._execute = without_change
"""


FEW_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "_hypothesis_pytestplugin"}
"""Variables of a process whose tests are plain: most of the time of such a run is that of loading plugins."""


def judged(folder: Path, tests: str, before: str = "", seconds: int = 300) -> dict[str, Any]:
    """Judge the planted module in a process of its own, because runs are forks of the process that asks for them."""
    (folder / "planted.py").write_text(MODULE)
    (folder / "test_planted.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-c", JUDGE.format(before=before, seconds=seconds)],
        cwd=folder, env={"PYTHONPATH": f"{folder}:{ROOT}", **FEW_PLUGINS}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_thorough_tests_notice_all_but_the_equal_case(tmp_path: Path) -> None:
    result = judged(tmp_path, THOROUGH)
    assert (result["sampled"], result["killed"], result["ways"]) == (4, 3, {"failed": 3})
    assert result["survivors"] == [
        {"line": 2, "change": "number > most  ->  number >= most", "source": "if number > most:"}
    ]


@pytest.mark.slow
def test_weak_tests_notice_nothing(tmp_path: Path) -> None:
    result = judged(tmp_path, WEAK)
    assert (result["sampled"], result["killed"], result["score"], result["reached"]) == (4, 0, 0.0, False)


@pytest.mark.slow
def test_an_instrument_that_changes_nothing_is_noticed(tmp_path: Path) -> None:
    silent = judged(tmp_path, THOROUGH, before=NEVER_APPLIED)
    assert not silent["reached"]
    assert silent["problem"] == "its tests never import it"
    claiming = judged(tmp_path, THOROUGH, before=APPLIED_ONLY_IN_WORDS)
    assert (claiming["sampled"], claiming["score"], claiming["reached"]) == (4, 0.0, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "seconds", "problem"),
    [
        ("def test_it(): assert False\n", 300, "its tests end with 1 without any change"),
        ("def test_it(): pass\n", 300, "its tests never import it"),
        (THOROUGH, -1, "the time was up after 0 of 4 changes"),
    ],
)
def test_modules_that_cannot_be_judged_are_refused(tmp_path: Path, tests: str, seconds: int, problem: str) -> None:
    result = judged(tmp_path, tests, seconds=seconds)
    assert (result["problem"], result["score"], result["reached"]) == (problem, 0.0, False)


@pytest.mark.slow
def test_a_hang_is_named_and_memory_is_limited(tmp_path: Path) -> None:
    hang = "import time\nfrom planted import capped\n" + THOROUGH.splitlines()[1]
    hang += "\n    if capped(3, 2) != 2: time.sleep(600)\n"
    result = judged(tmp_path, hang.replace(": assert", ":\n    assert 1 or"), before="judge.PATIENCE = 0")
    assert result["ways"]["deadline"] == result["killed"] > 0
    greedy = judged(tmp_path, f"import planted\ndef test_it(): bytearray({1 << 36})\n")
    assert greedy["problem"] == "its tests end with 1 without any change"
