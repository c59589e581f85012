"""Results of the trainer's benchmark: how they come from the image and which replace earlier ones."""

import json
from dataclasses import asdict
from pathlib import Path

from bench import trainer
from bench.report import Result, at_least, measured, record


def test_result_survives_serialization_from_the_image() -> None:
    result = Result("28m, packed", "tokens/s", 2.5, at_least(1.0), samples=[{"way": "plain"}], notes=["a"])
    assert trainer.parsed(json.loads(json.dumps(asdict(result)))) == Result(
        "28m, packed", "tokens/s", 2.5, at_least(1.0), samples=[{"way": "plain"}], notes=["a"]
    )


def test_missing_gpu_does_not_replace_an_earlier_measurement(tmp_path: Path) -> None:
    record("trainer", Result("MFU, 16k", "MFU", 12.0, at_least(10.9), "%"), tmp_path)
    assert measured("trainer", "MFU, 16k", tmp_path)
    handed: list[Result] = []
    trainer.keep(handed.append, Result("MFU, 16k", "MFU", None, at_least(10.9), "%"), tmp_path)
    assert handed == []
    trainer.keep(handed.append, Result("MFU, 65k", "MFU", None, at_least(25.2), "%"), tmp_path)
    trainer.keep(handed.append, Result("MFU, 16k", "MFU", 13.0, at_least(10.9), "%"), tmp_path)
    assert [r.ratio for r in handed] == [None, 13.0]
