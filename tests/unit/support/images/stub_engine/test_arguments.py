from pathlib import Path

import pytest
import yaml
from rlrun.api.model import RLModelSpec
from rlrun_operator.resources.inference import lora_args, serve_args

from tests.support.images.stub_engine.arguments import parse_arguments
from tests.support.source_tree import ROOT

MODELS = [ROOT / "examples" / "models" / name for name in ("reverse-text-tiny.yaml", "qwen3-0.6b.yaml")]
STUB_MODEL = ROOT / "tests" / "support" / "images" / "stub-model.yaml"


@pytest.mark.parametrize("path", [*MODELS, STUB_MODEL], ids=lambda path: path.stem)
def test_arguments_of_the_operator_are_accepted(path: Path) -> None:
    model = RLModelSpec.model_validate(yaml.safe_load(path.read_text())["spec"])
    found = parse_arguments(serve_args(model, [*lora_args(model, 4), "--max-cpu-loras", "8"]))
    assert found.served_model_name == model.id
    assert found.max_lora_rank == model.lora.rank
    assert found.middleware == ["rlrun_engine_access.middleware.EngineAccess"]
    assert parse_arguments(serve_args(model, [])).max_lora_rank is None


@pytest.mark.parametrize("flag", ["--no-such-flag", "--max-model", "--tensor-parallel-size"])
def test_an_unknown_flag_ends_the_process(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["/model", "--max-model-len", "64", flag, "2"])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {flag} 2" in capsys.readouterr().err
