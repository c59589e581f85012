import pytest
from rlrun_cli.inputs.model_sizing import parameters_in, size


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-0.6B", 0.6), ("meta/llama-3.1-70b-instruct", 70), ("a/smol-135M", 0.135),
        ("Qwen/Qwen3-30B-A3B", 30), ("a/phi-4", None), ("a/3beta", None),
    ],
)  # fmt: skip
def test_parameters_are_read_from_names(name: str, billions: float | None) -> None:
    assert parameters_in(name) == billions


@pytest.mark.parametrize(
    ("billions", "memory", "trainer", "engine"),
    [(0.6, 24, 1, 1), (8, 80, 1, 1), (8, 24, 2, 1), (20, 80, 1, 1), (21, 80, 2, 1), (70, 80, 4, 4), (400, 80, 32, 16)],
)
def test_gpus_are_a_power_of_two_that_holds_the_weights(
    billions: float, memory: float, trainer: int, engine: int
) -> None:
    found = size(billions, memory)
    assert (found.trainer_gpus, found.engine_gpus) == (trainer, engine)
    assert found.fits is (trainer <= 16)
