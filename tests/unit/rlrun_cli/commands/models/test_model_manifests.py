from pathlib import Path

import pytest
import yaml
from rlrun.api.model import RLModel

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.support.source_tree import ROOT


def test_a_manifest_is_valid_and_says_how_many_gpus(rlrun: Rlrun, api: FakeCluster) -> None:
    answer = rlrun("models", "add", "qwen/qwen3-32b", "--source", f"hf://Qwen/Qwen3-32B@{'0' * 40}")
    assert answer.code == 0
    model = RLModel.from_object(yaml.safe_load(answer.out))
    assert (model.spec.trainer.gpus, model.spec.inference.gpus) == (2, 2)
    assert "64 GB of weights" in answer.err
    assert rlrun("models", "check", "-", input=answer.out).out == "qwen3-32b: qwen/qwen3-32b is valid\n"
    assert api.calls == []


def test_sizes_can_be_given(rlrun: Rlrun) -> None:
    words = ["models", "add", "a/model", "--source", "s3://b/m"]
    unknown = rlrun(*words)
    assert "not known" in unknown.err
    assert yaml.safe_load(unknown.out)["spec"]["trainer"]["gpus"] == 1
    assert yaml.safe_load(rlrun(*words, "--cpu").out)["spec"]["inference"]["gpus"] == 0
    given = rlrun(*words, "--parameters", "70", "--gpu-memory", "141").out
    assert yaml.safe_load(given)["spec"]["trainer"]["gpus"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a/b", "--source", "ftp://x"], "spec.source"),
        (["a/b", "--source", "hf://a/b"], "must name a commit"),
        (["a b/c", "--source", f"hf://a/b@{'0' * 40}"], "spec.id"),
        (["a/b", "--source", f"hf://a/b@{'0' * 40}", "--parameters", "9000"], "do not fit 16 GPUs"),
    ],
)
def test_bad_options_are_refused(rlrun: Rlrun, words: list[str], message: str) -> None:
    answer = rlrun("models", "add", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "models").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_examples_are_valid(rlrun: Rlrun, path: Path) -> None:
    assert rlrun("models", "check", path).code == 0


def test_problems_are_listed_with_their_lines(rlrun: Rlrun, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("kind: RLModel\nspec:\n  id: a/b\n  sorce: s3://a/b\n  trainer: {nodes: 2, gpus: 0}\n")
    answer = rlrun("models", "check", file)
    assert answer.code == 2
    assert "line 4: spec.sorce: unknown field; did you mean source?" in answer.err
    assert "line 5: spec.trainer" in answer.err
    assert rlrun("models", "check", "-", input="kind: RLRun").code == 2


def test_the_digits_of_a_commit_are_no_number_of_parameters(rlrun: Rlrun) -> None:
    answer = rlrun("models", "add", "a/large", "--source", f"hf://a/large@70{'0' * 37}b")
    assert "number of parameters is not known" in answer.err
