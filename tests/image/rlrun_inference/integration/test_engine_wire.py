"""vLLM answers as `tests/fixtures/engine-wire.yaml` has it, which the stub engine is compared with too."""

from pathlib import Path

import pytest
import yaml
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tests.support.engine_wire import (
    DASHBOARD_METRICS,
    EXPECTED,
    METRICS,
    MODEL_FOLDER,
    SCORES,
    TEACHER,
    arguments,
    metric_names,
    observe,
    violations,
    wire_requests,
)
from tests.support.images.stub_engine.arguments import IGNORED_SWITCHES, IGNORED_VALUES
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

WRITE_AGAIN = "see tests/support/engine_wire.py"


def test_vllm_answers_as_the_stub_is_expected_to(adapter_engine: str, adapter_folder: Path) -> None:
    expected = yaml.safe_load(EXPECTED.read_text())
    for name, answer in observe(adapter_engine, wire_requests(adapter_folder), adapter_folder).items():
        assert answer == expected[name], f"{name}: {WRITE_AGAIN}"


def test_vllm_keeps_the_rules_of_all_tokens(adapter_engine: str) -> None:
    assert violations(adapter_engine) == []


def test_vllm_has_the_metrics_of_the_stub(adapter_engine: str) -> None:
    assert metric_names(adapter_engine) >= METRICS


def test_vllm_has_the_metrics_of_the_dashboards(adapter_engine: str) -> None:
    assert metric_names(adapter_engine) >= DASHBOARD_METRICS


def test_a_teacher_scores_prompts_as_the_stub_does(plain_engine: str, tmp_path: Path) -> None:
    expected = yaml.safe_load(EXPECTED.read_text())
    for name, answer in observe(plain_engine, [TEACHER, SCORES], tmp_path).items():
        assert answer == expected[name], f"{name}: {WRITE_AGAIN}"


def test_flags_of_the_stub_are_flags_of_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    known = {option for action in parser._actions for option in action.option_strings}
    assert {*IGNORED_SWITCHES, *IGNORED_VALUES} <= known
    assert {word for word in arguments(MODEL_FOLDER, adapters=True) if word.startswith("--")} <= known
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["/model", "--no-such-flag", "2"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --no-such-flag 2" in capsys.readouterr().err


def test_the_stub_tokenizes_as_the_tokenizers_library_does() -> None:
    from transformers import AutoTokenizer

    library, stub = AutoTokenizer.from_pretrained(MODEL_FOLDER), CharacterTokenizer(MODEL_FOLDER)
    for text in ("", "abc", "A-bß\n<sep> <eos>", "<sep><pad>x", "naïve İ 7", "a\u0000b\u2028c"):
        ids = library.encode(text, add_special_tokens=False)
        assert stub.encode(text) == ids, text
        assert stub.decode(ids) == library.decode(ids), text
        assert stub.decode(ids, skip_special=True) == library.decode(ids, skip_special_tokens=True), text
