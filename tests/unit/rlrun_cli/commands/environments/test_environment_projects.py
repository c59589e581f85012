import json
from pathlib import Path

import pytest

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_s3 import InMemoryStore
from tests.support.source_tree import PYTHONPATH, ROOT


@pytest.fixture
def package(rlrun: Rlrun, tmp_path: Path) -> Path:
    """A package as `env init` writes it."""
    folder = tmp_path / "my-env"
    assert rlrun("env", "init", "my-env", "--owner", "me", "--dir", folder).code == 0
    return folder


@pytest.mark.slow
def test_a_new_package_passes_all_checks(rlrun: Rlrun, api: FakeCluster, package: Path) -> None:
    answer = rlrun("env", "check", package)
    assert answer.code == 0, answer.out
    assert [line.split()[0] for line in answer.out.splitlines()] == ["ok"] * 5
    assert "load_environment()" in answer.out
    assert "runs will use verifiers 0.3.1 (v0) and Python 3.11" in answer.out
    assert api.calls == []


@pytest.mark.slow
def test_a_taskset_is_checked_with_the_packages_of_its_generation(rlrun: Rlrun, package: Path) -> None:
    project = package / "pyproject.toml"
    project.write_text(project.read_text().replace("verifiers>=0.3,<0.4", 'verifiers>=0.4", "mcp>=2'))
    module = package / "my_env.py"
    module.write_text("import verifiers.v1 as vf\n\n__all__ = ['Words']\n\nclass Words(vf.Taskset): ...\n")
    answer = rlrun("env", "check", package)
    assert answer.code == 0, answer.out
    assert "runs will use verifiers 0.4.0 (v1) and Python 3.11" in answer.out
    assert "exports a taskset" in answer.out
    refused = rlrun("env", "check", package, "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert refused.code == 2
    assert "tasksets" in refused.err


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "environments").glob("*/pyproject.toml")), ids=str)
def test_the_examples_pass_all_checks(rlrun: Rlrun, path: Path) -> None:
    answer = rlrun("env", "check", path.parent)
    assert answer.code == 0, answer.out + answer.err


@pytest.mark.slow
def test_all_that_is_wrong_is_listed(rlrun: Rlrun, package: Path) -> None:
    project = package / "pyproject.toml"
    text = project.read_text().replace('owner = "me"', "").replace('["verifiers', '["nltk>=3", "verifiers')
    project.write_text(text)
    (package / "my_env.py").write_text("def load(): ...\n")
    answer = rlrun("env", "check", package)
    assert answer.code == 1
    wrong = [line for line in answer.out.splitlines() if line.startswith("wrong")]
    assert len(wrong) == 2
    for part in ("has no owner", "does not define load_environment()", "lacks nltk: env push adds their wheels"):
        assert part in answer.out


@pytest.mark.slow
def test_requires_python_chooses_the_python_of_runs(
    rlrun: Rlrun, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = package / "pyproject.toml"
    text = project.read_text()
    project.write_text(text.replace(">=3.11", ">=3.12"))
    monkeypatch.setattr("rlrun_cli.inputs.package_generation.platform.python_version", lambda: "3.11.7")
    answer = rlrun("env", "check", package, "--play")
    assert answer.code == 0, answer.out
    assert "runs will use verifiers 0.3.1 (v0) and Python 3.13" in answer.out
    said = "requires-python asks for >=3.12, but this Python is 3.11.7"
    assert f"example 0 was not run: {said}" in " ".join(answer.out.split())
    words = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert said in rlrun("env", "eval", package, *words, "--output", package / "samples").err
    project.write_text(text.replace(">=3.11", ">=3.14"))
    answer = rlrun("env", "check", package)
    assert answer.code == 1
    told = "my-env: requires-python asks for >=3.14, but the environment image offers 3.11 and 3.13"
    assert told in " ".join(answer.out.split())


@pytest.mark.parametrize("words", [["Bad_Name"], ["ok", "--owner", "no/slash"], [""]])
def test_bad_names_are_refused(rlrun: Rlrun, tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "x"
    assert rlrun("env", "init", *words, "--dir", folder).code == 2
    assert not folder.exists()


def test_init_never_overwrites(rlrun: Rlrun, package: Path) -> None:
    before = (package / "my_env.py").read_text()
    assert rlrun("env", "init", "my-env", "--dir", package).code == 2
    assert (package / "my_env.py").read_text() == before


def test_info_lists_versions_in_their_order(rlrun: Rlrun, s3: InMemoryStore) -> None:
    for version in ("0.10.0", "0.9.0"):
        for file, size in (("a.whl", 1024), ("b.whl", 1024), ("note.txt", 9)):
            s3.objects[f"s3://b/p/environments/me/rev/{version}/{file}"] = b"x" * size
    header, first, second = rlrun("env", "info", "me/rev").out.splitlines()
    assert header.split() == ["VERSION", "SIZE", "FILES"]
    assert first.split() == ["0.9.0", "2.0", "KiB", "a.whl,", "b.whl"]
    assert second.split()[0] == "0.10.0"
    shown = json.loads(rlrun("env", "info", "me/rev", "-o", "json").out)
    assert shown[0] == {"version": "0.9.0", "files": {"a.whl": 1024, "b.whl": 1024}}


def test_info_finds_all_spellings(rlrun: Rlrun, s3: InMemoryStore) -> None:
    s3.objects["s3://b/p/environments/me/pi-agent-env/1.0/a.whl"] = b"x"
    for spelling in ("pi_agent_env", "Pi.Agent.Env", "pi-agent-env"):
        assert rlrun("env", "info", f"me/{spelling}", "-o", "name").out == "1.0\n"


def test_versions_are_ordered_as_in_pep_440(rlrun: Rlrun, s3: InMemoryStore) -> None:
    for version in ("1.0", "1.0rc1", "1.0.post1", "1.0.dev2"):
        s3.objects[f"s3://b/p/environments/me/rev/{version}/a.whl"] = b"x"
    assert rlrun("env", "info", "me/rev", "-o", "name").out.split() == ["1.0.dev2", "1.0rc1", "1.0", "1.0.post1"]


def test_info_of_what_does_not_exist(rlrun: Rlrun) -> None:
    answer = rlrun("env", "info", "me/rev")
    assert answer.code == 1
    assert "rlrun env push" in answer.err
    assert rlrun("env", "info", "rev").code == 2
    assert rlrun("env", "info", "me/../x").code == 2


@pytest.mark.slow
def test_an_example_is_played_with_its_reference_answer_without_a_proxy(
    rlrun: Rlrun, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    answer = rlrun("env", "check", package, "--play")
    assert answer.code == 0, answer.out
    assert "example 0 ran; requests with scripted answers: 2, rewards: 1, 1" in " ".join(answer.out.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("    rows = []", "    raise LookupError('no board')", "did not load: LookupError: no board"),
        (
            "import verifiers as vf",
            "import verifiers as vf\nimport missing_here",
            "No module named 'missing_here' (at my_env.py:",
        ),
        (
            "import verifiers as vf",
            "import verifiers as vf\nimport my_env.parts",
            "The package has no module 'my_env.parts'",
        ),
        (
            "import verifiers as vf",
            "import verifiers as vf\nimport verifiers.no_such_part",
            "No module named 'verifiers.no_such_part'",
        ),
        (
            "return float(",
            "return float(1 / 0) + float(",
            "In the phase score: Reward function is_right raised ZeroDivisionError",
        ),
        ('"prompt": [question]', '"prompt": [question], "info": {"task": "x"}', "In the phase prepare: "),
    ],
)
def test_an_example_that_cannot_be_played_is_wrong_in_its_phase(
    rlrun: Rlrun, package: Path, old: str, new: str, words: str
) -> None:
    module = package / "my_env.py"
    assert old in module.read_text()
    module.write_text(module.read_text().replace(old, new))
    answer = rlrun("env", "check", package, "--play")
    said = " ".join(answer.out.split())
    assert words in said
    assert answer.code == 1, said


@pytest.mark.slow
@pytest.mark.parametrize("requirement", ["missing-here", "pytest-asyncio[docs]"])
def test_an_example_is_not_played_where_a_requirement_is_absent(rlrun: Rlrun, package: Path, requirement: str) -> None:
    project = package / "pyproject.toml"
    project.write_text(project.read_text().replace('"verifiers>=0.3,<0.4"', f'"{requirement}"'))
    (package / "my_env.py").write_text(f"import of_a_requirement\n{PLAIN}")
    answer = rlrun("env", "check", package, "--play")
    said = " ".join(answer.out.split())
    assert "ok example 0 was not run: this Python lacks the module of_a_requirement" in said
    assert answer.code == 0, said


PLAIN = """
import json, urllib.request

class Words:
    dataset = [{"prompt": "abc", "answer": "cba"}]

    def rollout(self, example, *, base_url, api_key, model, sampling):
        asked = {"model": model, "messages": [], "temperature": sampling["temperature"], "n": sampling["max_tokens"]}
        urllib.request.urlopen(base_url + "/chat/completions", json.dumps(asked).encode()).read()
        return 1.0

def load_environment():
    return Words()
"""


@pytest.mark.slow
def test_an_example_is_played_from_the_wheel(
    rlrun: Rlrun, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "my_env.py").write_text(PLAIN)
    (tmp_path / "my_env.py").write_text("raise LookupError('of the current folder')\n")
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.chdir(tmp_path)
    answer = rlrun("env", "check", package, "--play")
    assert "requests with scripted answers: 2, rewards: 1, 1" in " ".join(answer.out.split()), answer.out
