"""`rlrun env eval`: rollouts with verifiers' evaluation, whose samples are kept."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chat_endpoint import Endpoint, serving
from tests.support.command_line import Answer, Rlrun
from tests.support.source_tree import PYTHONPATH

pytestmark = pytest.mark.slow
PLAIN = "class Game:\n    def rollout(self, example, **options): ...\n\ndef load_environment():\n    return Game()\n"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as server:
        yield server


@pytest.fixture
def package(rlrun: Rlrun, tmp_path: Path) -> Path:
    folder = tmp_path / "my-env"
    assert rlrun("env", "init", "my-env", "--owner", "me", "--dir", folder).code == 0
    return folder


def evaluate(rlrun: Rlrun, package: Path, endpoint: Endpoint, *words: object) -> Answer:
    given = ["--base-url", endpoint.url, "--model", "org/m", "--examples", "2", "--rollouts", "3"]
    return rlrun("env", "eval", package, *given, *words, env={"PYTHONPATH": PYTHONPATH})


def test_samples_are_kept_in_the_files_of_verifiers(
    rlrun: Rlrun, package: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.replies = itertools.cycle(["1", "21"])
    samples = tmp_path / "new" / "samples"
    answer = evaluate(rlrun, package, endpoint, "--output", samples, "--args", '{"num_examples": 7}')
    assert answer.code == 0, answer.out + answer.err
    assert "over 6 rollouts" in answer.out
    assert f"Samples: {samples}" in answer.err
    lines = [json.loads(line) for line in (samples / "results.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert {line["example_id"] for line in lines} == {0, 1}
    assert {line["completion"][-1]["content"] for line in lines} <= {"1", "21"}
    assert all("reward" in line and line["prompt"] for line in lines)
    metadata = json.loads((samples / "metadata.json").read_text())
    assert (metadata["model"], metadata["num_examples"], metadata["rollouts_per_example"]) == ("org/m", 2, 3)
    assert metadata["sampling_args"]["max_tokens"] == 512
    again = evaluate(rlrun, package, endpoint, "--output", samples)
    assert (again.code, "is not empty" in again.err) == (2, True)


def test_without_output_the_folder_is_that_of_vf_eval(
    rlrun: Rlrun, package: Path, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = evaluate(rlrun, package, endpoint)
    assert answer.code == 0, answer.out + answer.err
    (folder,) = Path("outputs", "evals", "my-env--org--m").iterdir()
    assert str(folder) in answer.err
    assert (folder / "results.jsonl").is_file()


def test_an_environment_that_verifiers_does_not_evaluate_is_refused(
    rlrun: Rlrun, package: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    (package / "my_env.py").write_text(PLAIN)
    answer = evaluate(rlrun, package, endpoint, "--output", tmp_path / "samples")
    assert answer.code == 1
    assert "use rlrun env check for this environment" in answer.err
    assert "Samples" not in answer.err


def test_an_endpoint_must_be_given(rlrun: Rlrun, package: Path, tmp_path: Path) -> None:
    answer = rlrun("env", "eval", package, "--output", tmp_path / "samples")
    assert (answer.code, "--base-url is missing" in answer.err) == (2, True)
    assert not (tmp_path / "samples").exists()


def test_a_refused_option_leaves_no_folder(
    rlrun: Rlrun, package: Path, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    answer = evaluate(rlrun, package, endpoint, "--output", tmp_path / "samples", "--key-variable", "NO_SUCH_KEY")
    assert (answer.code, "NO_SUCH_KEY is not set" in answer.err) == (2, True)
    assert not (tmp_path / "samples").exists()


def test_an_evaluation_gives_no_advice_on_training(
    rlrun: Rlrun, package: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.replies = itertools.repeat("1")
    answer = evaluate(rlrun, package, endpoint, "--output", tmp_path / "samples", "--rollouts", "1")
    assert answer.code == 0, answer.out + answer.err
    assert "mean reward 0.5 over 2 rollouts" in answer.out
    assert "wrong" not in answer.out
