from dataclasses import replace
from typing import Any

import pytest
from rlrun_cli.inputs.model_config import Architecture, architecture
from rlrun_cli.inputs.model_sizing import (
    Job,
    kv_bytes,
    parameters_in,
    pod_resources,
    sequences,
    size,
    size_architecture,
    trainer_bytes,
)

from tests.support.config_hub import QWEN3_8B

JOB = Job(gpu_memory_gb=80, seq_len=8192, rank=16, micro_batch_tokens=8192)


def model(**changes: Any) -> Architecture:
    found = architecture({**QWEN3_8B, **changes})
    assert found is not None
    return found


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


def test_the_size_of_adapters_of_experts_is_shown_where_there_are_some() -> None:
    mixture = model(
        hidden_size=2048, num_hidden_layers=48, num_key_value_heads=4, num_experts=128, moe_intermediate_size=768
    )
    shown = "\n".join(size_architecture(mixture, JOB).steps)
    assert (
        "629 million weights to the adapter: 10.1 GB on each GPU of the trainer, and 1.66 GB of files in each step"
        in shown
    )
    for other in (size_architecture(model(), JOB), size_architecture(mixture, replace(JOB, full_fine_tuning=True))):
        assert "Experts:" not in "\n".join(other.steps)


def test_the_arithmetic_is_shown() -> None:
    found = size_architecture(model(), JOB)
    assert (found.trainer_gpus, found.engine_gpus, found.tensor) == (1, 1, 1)
    shown = "\n".join(found.steps)
    for part in (
        "8.19 billion x 2 bytes = 16.4 GB",
        "2 x 36 layers x 8 heads x 128 x 2 bytes = 147456 bytes per token, x 8192 tokens = 1.21 GB per sequence",
        "adapter of rank 16: 43.6 million x 16 bytes",
        "16.4 / 1 + adapter 0.698 + activations 8192 tokens x 36 x 4096 x 2 bytes = 2.42 + "
        "logits 2048 tokens x 151936 x 10 bytes = 3.11: 22.6 of 80 GB per GPU",
        "(0.9 x 1 x 80 - 16.4) GB / 1.21 GB = 46 sequences of 8192 tokens at once",
    ):
        assert part in shown


def test_activations_are_those_of_a_sequence_that_exceeds_a_micro_batch() -> None:
    found = size_architecture(model(), Job(80, 65536, 16, 8192))
    assert "activations 2 x 65536 tokens x 36 x 4096 x 2 bytes = 38.7" in "\n".join(found.steps)
    assert not size_architecture(model(), Job(80, 131072, 16, 8192)).fits


def test_logits_count_where_they_need_more_than_a_layer() -> None:
    short, long = (Job(80, tokens, 16, 1024) for tokens in (1024, 65536))
    assert "logits 2048 tokens x 151936 x 10 bytes" in "\n".join(size_architecture(model(), short).steps)
    assert "logits" not in "\n".join(size_architecture(model(), long).steps)


def test_full_fine_tuning_counts_gradients_and_optimizer() -> None:
    found = size_architecture(model(), Job(80, 8192, 16, 8192, full_fine_tuning=True))
    assert (found.trainer_gpus, found.engine_gpus) == (4, 1)
    assert "8.19 billion x 16 bytes" in "\n".join(found.steps)


@pytest.mark.parametrize(("gpu_memory", "seq_len"), [(16, 4096), (24, 8192), (80, 4096), (80, 65536), (288, 262144)])
def test_what_is_proposed_fits_and_half_of_it_does_not(gpu_memory: float, seq_len: int) -> None:
    job = Job(gpu_memory, seq_len, 16, 8192)
    found = size_architecture(model(), job)
    assert trainer_bytes(model(), job, found.trainer_gpus) <= 0.9 * gpu_memory * 1e9
    assert sequences(model(), job, found.engine_gpus) >= 8
    assert model().is_divisible(found.tensor)
    if found.trainer_gpus > 1:
        assert trainer_bytes(model(), job, found.trainer_gpus // 2) > 0.9 * gpu_memory * 1e9
    if found.engine_gpus > 1:
        assert sequences(model(), job, found.engine_gpus // 2) < 8


def test_gpus_that_heads_do_not_divide_hold_other_layers() -> None:
    odd = model(num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864 * 8)
    found = size_architecture(odd, Job(16, 8192, 16, 8192))
    assert found.engine_gpus > 2
    assert found.tensor == 2


def test_gpus_beyond_the_heads_of_keys_and_values_repeat_them() -> None:
    assert kv_bytes(model(), 8) == kv_bytes(model(), 1) == 147456
    assert kv_bytes(model(), 16) == 2 * 147456


def test_a_model_that_is_too_large_does_not_fit() -> None:
    assert not size_architecture(model(num_hidden_layers=3600), JOB).fits


@pytest.mark.parametrize(
    ("changes", "by_parts"),
    [
        ({}, True),
        ({"model_type": "qwen3_vl_moe"}, False),
        ({"quantization_config": {"quant_method": "fp8"}}, False),
    ],
)
def test_some_models_are_not_read_by_parts(changes: dict[str, Any], by_parts: bool) -> None:
    assert size_architecture(model(**changes), JOB).read_by_parts == by_parts


@pytest.mark.parametrize(
    ("weights", "gpus", "reads", "width", "memory"),
    [
        (16.4, 1, 1, 2, "128Gi"),
        (141, 4, 4, 2, "558Gi"),
        (141, 4, 1.2, 2, "512Gi"),
        (16.4, 8, 8, 4, "1024Gi"),
        (1.2, 0, 1, 2, "32Gi"),
    ],
)
def test_the_limit_of_memory_holds_what_the_processes_read(
    weights: float, gpus: int, reads: float, width: int, memory: str
) -> None:
    assert pod_resources(weights, gpus, reads=reads, bytes_per_parameter=width).limits["memory"] == memory


def test_pods_that_download_weights_request_the_disk_that_they_fill() -> None:
    assert pod_resources(16.4, 1, downloads=True).requests["ephemeral-storage"] == "16Gi"
    assert "ephemeral-storage" not in pod_resources(16.4, 1).requests
