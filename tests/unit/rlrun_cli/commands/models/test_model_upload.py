"""`rlrun models push` with S3 in memory."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rlrun.storage.layout import S3Uri

from tests.support.command_line import Rlrun, call
from tests.support.fake_s3 import InMemoryStore
from tests.support.signed_s3 import AWS, BUCKET, signed_s3

TARGET = S3Uri("b", "p/models/lab/tiny")
PLACE = ["--bucket", "b", "--prefix", "p"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / ".cache").mkdir(parents=True)
    (folder / ".cache" / "junk").write_text("x")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return folder


def test_the_files_of_a_model_are_uploaded_with_a_manifest(rlrun: Rlrun, s3: InMemoryStore, model: Path) -> None:
    answer = rlrun("models", "push", model, "lab/tiny", *PLACE)
    assert (answer.code, answer.out) == (0, "s3://b/p/models/lab/tiny\n"), answer.err
    assert "chat template" not in answer.err
    manifest = s3.read_manifest(TARGET)
    assert manifest is not None
    assert manifest.model == "lab/tiny"
    names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert [entry.name for entry in manifest.files] == names
    assert s3.get_bytes(TARGET / "model.safetensors") == b"weights"
    assert rlrun("models", "push", model, "lab/tiny", *PLACE).code == 0, "the same files again"


def test_a_model_without_a_chat_template_is_noticed(rlrun: Rlrun, model: Path) -> None:
    (model / "tokenizer_config.json").write_text("not json")
    assert "has no chat template" in rlrun("models", "push", model, "lab/tiny", *PLACE).err
    (model / "chat_template.jinja").write_text("x")
    assert "has no chat template" not in rlrun("models", "push", model, "lab/tiny", *PLACE).err


def test_all_that_is_missing_is_listed_and_nothing_is_uploaded(rlrun: Rlrun, s3: InMemoryStore, model: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    (model / "model.bin").write_bytes(b"x")
    answer = rlrun("models", "push", model, "lab/tiny", *PLACE)
    assert answer.code == 2
    for part in ("config.json", "*.safetensors", "tokenizer.json"):
        assert part in answer.err
    assert list(s3.list_files(S3Uri("b", ""))) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lab/tiny"], "no bucket is selected"),
        (["tiny", *PLACE], "is not a valid model id"),
        (["../../x/y", *PLACE], "is not a valid model id"),
    ],
)
def test_wrong_words_are_refused(rlrun: Rlrun, model: Path, words: list[str], said: str) -> None:
    answer = rlrun("models", "push", model, *words)
    assert answer.code == 2
    assert said in answer.err


def test_a_folder_that_is_none_is_refused(rlrun: Rlrun, tmp_path: Path) -> None:
    answer = rlrun("models", "push", tmp_path / "none", "lab/tiny", *PLACE)
    assert answer.code == 2
    assert "is not a folder" in answer.err


@pytest.mark.parametrize("words", [["--addressing-style", "virtual"], []], ids=["option", "variable"])
def test_the_bucket_may_be_in_the_host_name(model: Path, words: list[str]) -> None:
    with signed_s3(replace(AWS, virtual_hosts_only=True)) as s3:
        variables = {**s3.server.environment, "RLRUN_S3_ADDRESSING_STYLE": None if words else "virtual"}
        answer = call("models", "push", model, "lab/tiny", "--bucket", BUCKET, *words, env=variables)
        assert (answer.code, answer.out) == (0, f"s3://{BUCKET}/models/lab/tiny\n"), answer.err
        assert s3.objects["models/lab/tiny/model.safetensors"] == b"weights"
        by_path = call("models", "push", model, "lab/tiny", "--bucket", BUCKET, env=s3.server.environment)
        assert by_path.code == 1
        assert "set s3.addressingStyle in the chart to virtual" in " ".join(by_path.err.split())
