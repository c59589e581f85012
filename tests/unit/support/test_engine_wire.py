"""The stub engine answers as vLLM does; tests/image/rlrun_inference compares vLLM with the same file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.engine_process import STUB
from tests.support.engine_wire import (
    EXPECTED,
    LITERAL,
    METRICS,
    SCORES,
    TEACHER,
    engine,
    metric_names,
    observe,
    shape,
    violations,
    wire_requests,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stub")


@pytest.fixture(scope="module")
def stub(folder: Path) -> Iterator[str]:
    with engine(STUB, folder) as url:
        yield url


@pytest.mark.slow
def test_the_stub_answers_as_vllm_does(stub: str, folder: Path) -> None:
    expected = yaml.safe_load(EXPECTED.read_text())
    found = observe(stub, [*wire_requests(folder), TEACHER, SCORES], folder)
    assert found.keys() == expected.keys()
    for name, answer in found.items():
        assert answer == expected[name], name


@pytest.mark.slow
def test_the_stub_keeps_the_rules_of_all_tokens(stub: str) -> None:
    assert violations(stub) == []


@pytest.mark.slow
def test_metrics_have_the_names_that_are_compared_with_vllm(stub: str) -> None:
    assert metric_names(stub) >= METRICS
    assert {name for name in metric_names(stub) if not name.endswith("_created")} == METRICS


def test_a_shape_keeps_what_clients_rely_on() -> None:
    answer = {"id": "x1", "model": "m", "created": 5, "choices": [{"index": 0, "logprob": -0.5}] * 2, "usage": None}
    found = shape(answer, LITERAL)
    assert found == {
        "id": "string",
        "model": "m",
        "created": "number",
        "choices": [{"index": 0, "logprob": "number"}],
        "usage": None,
    }
    assert shape(answer | {"created": "5"}, LITERAL) != found, "another type"
    assert shape({**answer, "more": 1}, LITERAL) != found, "another field"
