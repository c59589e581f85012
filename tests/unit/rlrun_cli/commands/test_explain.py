"""`rlrun explain`: every key has its meaning, default and limits, without a cluster."""

import pytest
from rlrun.codegen.reference_pages import toml_rows

from tests.support.command_line import call


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("sampling.temperature", ["default 1.0", "> 0", "greedy"]),
        ("spec.maxSteps", ["max_steps", "default 100", "optimizer steps"]),
        ("env", ["default []", "env.rollout_timeout_seconds"]),
        ("env.id", ["owner/name@version"]),
        ("orchestrator.group_size", ["corresponds to rollouts_per_example"]),
        ("seq_len", ["seqLen of the RLModel"]),
        ("", ["learning_rate", "wandb"]),
    ],
)
def test_a_key_is_explained(field: str, parts: list[str]) -> None:
    answer = call("explain", *([field] if field else []))
    assert answer.code == 0
    assert not [part for part in parts if part not in answer.out], answer.out


def test_every_key_of_the_reference_is_explained_without_a_regular_expression() -> None:
    for row in toml_rows():
        answer = call("explain", row.path)
        assert answer.code == 0, row.path
        assert not [part for part in ("^", "[A-Za-z", ")?$") if part in answer.out], answer.out
    assert "write owner/name, owner/name@version or" in call("explain", "env.id").out


def test_values_that_a_key_of_another_file_may_have_are_explained() -> None:
    assert "The value of model is dropped" in " ".join(call("explain", "inference.vllm.model").out.split())
    assert "0.95 is dropped" in " ".join(call("explain", "trainer.optim.betas2").out.split())


def test_an_unknown_key_gets_similar_ones() -> None:
    answer = call("explain", "temperatur")
    assert (answer.code, "sampling.temperature" in answer.err) == (2, True)
    assert "similar fields: batch_size, token_batch_size" in call("explain", "batch_sise").err
