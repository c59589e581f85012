"""What `auto` means, with CUDA and without."""

import pytest
import torch
from rlrun.service.errors import ProblemError
from rlrun_trainer.model.loader import attention_of, device_of, dtype_of, recomputes


def test_auto_takes_the_gpu_of_this_process_where_there_is_one() -> None:
    assert device_of("auto", cuda=False) == torch.device("cpu")
    assert device_of("auto", cuda=True, local_rank=3) == torch.device("cuda", 3)
    assert device_of("cpu", cuda=True) == torch.device("cpu")
    with pytest.raises(ProblemError, match="no GPU"):
        device_of("cuda", cuda=False)


@pytest.mark.parametrize(
    ("setting", "device", "dtype"),
    [
        ("auto", "cuda", torch.bfloat16),
        ("auto", "cpu", torch.float32),
        ("float32", "cuda", torch.float32),
        ("bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_precision(setting: str, device: str, dtype: torch.dtype) -> None:
    assert dtype_of(setting, device) == dtype


@pytest.mark.parametrize(
    ("setting", "device", "flash", "attention"),
    [
        ("auto", "cuda", True, "flash_attention_2"),
        ("auto", "cuda", False, "sdpa"),
        ("auto", "cpu", True, "sdpa"),
        ("eager", "cuda", True, "eager"),
    ],
)
def test_attention(setting: str, device: str, flash: bool, attention: str) -> None:
    assert attention_of(setting, device, flash) == attention


@pytest.mark.parametrize(
    ("setting", "device", "wanted"),
    [("auto", "cuda", True), ("auto", "cpu", False), ("on", "cpu", True), ("off", "cuda", False)],
)
def test_recomputed_activations(setting: str, device: str, wanted: bool) -> None:
    assert recomputes(setting, device) == wanted
