"""`rlrun explain`: every key has its meaning, default and limits, without a cluster."""

import pytest
from rlrun.codegen.reference_pages import toml_rows

from tests.support.command_line import call


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("sampling.temperature", ["default 1.0", "> 0", "greedy"]),
        ("spec.maxSteps", ["max_steps", "default 100", "optimizer steps"]),
        ("env", ["required", "env.rollout_timeout_seconds"]),
        ("env.id", ["owner/name@version"]),
        ("orchestrator.group_size", ["is rollouts_per_example here"]),
        ("seq_len", ["seqLen of the RLModel"]),
        ("", ["learning_rate", "wandb"]),
    ],
)
def test_a_key_is_explained(field: str, parts: list[str]) -> None:
    answer = call("explain", *([field] if field else []))
    assert answer.code == 0
    assert not [part for part in parts if part not in answer.out], answer.out


def test_every_key_of_the_reference_is_explained() -> None:
    for row in toml_rows():
        assert call("explain", row.path).code == 0, row.path


def test_an_unknown_key_gets_similar_ones() -> None:
    answer = call("explain", "temperatur")
    assert (answer.code, "sampling.temperature" in answer.err) == (2, True)
