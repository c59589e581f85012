import json
from pathlib import Path

import pytest
import yaml
from rlrun.api.model import RLModel

from tests.support.command_line import Rlrun
from tests.support.config_hub import QWEN3_8B, config_file, config_hub
from tests.support.fake_cluster import FakeCluster
from tests.support.source_tree import ROOT

COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")


def test_a_manifest_is_valid_and_says_how_many_gpus(rlrun: Rlrun, api: FakeCluster) -> None:
    answer = rlrun("models", "add", "qwen/qwen3-32b", "--source", "pvc://weights/qwen3-32b")
    assert answer.code == 0
    model = RLModel.from_object(yaml.safe_load(answer.out))
    assert (model.spec.trainer.gpus, model.spec.inference.gpus) == (2, 2)
    assert model.spec.inference.parallelism.tensor == 2
    assert model.spec.trainer.resources.requests == {"cpu": "4", "memory": "16Gi"}
    assert "32 billion x 2 bytes = 64 GB" in answer.err
    assert rlrun("models", "check", "-", input=answer.out).out == "qwen3-32b: qwen/qwen3-32b is valid\n"
    assert api.calls == []


def test_sizes_come_from_the_configuration_in_the_hub(rlrun: Rlrun, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["models", "add", "qwen/large", "--source", f"hf://Qwen/Large@{COMMIT}", "--gpu-memory", "24"]
    words += ["--seq-len", "8192"]
    with config_hub(config_file("Qwen/Large", COMMIT, QWEN3_8B)) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        answer = rlrun(*words)
        full = rlrun(*words, "--full-fine-tuning", "--gpu-memory", "80")
    model = RLModel.from_object(yaml.safe_load(answer.out)).spec
    assert (model.trainer.gpus, model.inference.gpus, model.inference.parallelism.tensor) == (2, 2, 2)
    assert "147456 bytes per token" in answer.err
    trains_all = RLModel.from_object(yaml.safe_load(full.out)).spec.trainer
    assert (trains_all.full_fine_tuning, trains_all.gpus) == (True, 4)
    away = rlrun(*words)
    assert (away.code, yaml.safe_load(away.out)["spec"]["trainer"]["gpus"]) == (0, 1)
    assert "because config.json is unavailable" in away.err
    assert "number of parameters is unknown" in away.err


def test_sizes_come_from_a_file(rlrun: Rlrun, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    words = ["models", "add", "a/model", "--source", "pvc://w/m", "--config", tmp_path]
    answer = rlrun(*words, "--seq-len", "65536")
    model = RLModel.from_object(yaml.safe_load(answer.out)).spec
    assert (model.trainer.gpus, model.inference.gpus) == (1, 2)
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    assert "architecture in config.json is not supported" in rlrun(*words).err
    (tmp_path / "config.json").unlink()
    missing = rlrun(*words)
    assert (missing.code, missing.out) == (2, "")


def test_sizes_can_be_given(rlrun: Rlrun) -> None:
    words = ["models", "add", "a/model", "--source", "s3://b/m"]
    unknown = rlrun(*words)
    assert "is unknown" in unknown.err
    assert yaml.safe_load(unknown.out)["spec"]["trainer"]["gpus"] == 1
    assert yaml.safe_load(rlrun(*words, "--cpu").out)["spec"]["inference"]["gpus"] == 0
    given = rlrun(*words, "--parameters", "70", "--gpu-memory", "141").out
    assert yaml.safe_load(given)["spec"]["trainer"]["gpus"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a/b", "--source", "ftp://x"], "spec.source"),
        (["a/b", "--source", "hf://a/b"], "must be pinned to a commit"),
        (["a b/c", "--source", f"hf://a/b@{'0' * 40}"], "spec.id"),
        (["a/b", "--source", f"hf://a/b@{'0' * 40}", "--parameters", "9000"], "does not fit on 16 GPUs"),
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
    assert "number of parameters is unknown" in answer.err
