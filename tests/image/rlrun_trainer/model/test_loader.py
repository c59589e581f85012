"""What `auto` means, with CUDA and without."""

import pytest
import torch
from rlrun.service.errors import ProblemError
from rlrun_trainer.model.loader import Loader, attentions_of, cuda_problem, device_of, dtype_of, recomputes
from rlrun_trainer.runtime.process_group import ProcessGroup
from rlrun_trainer.runtime.settings import TrainerSettings


def device(name: str, gpus: int | None, *, there: int, rank: int = 0) -> torch.device:
    """Return the device on a machine with `there` GPUs."""
    return device_of(
        TrainerSettings(device=name, gpus=gpus),
        rank,
        has_gpu=lambda: there > 0,
        problem=lambda gpus, rank: None if there >= gpus else f"{there} of {gpus}",
    )


def test_auto_takes_the_gpu_of_this_process_where_there_is_one() -> None:
    assert device("auto", None, there=0) == torch.device("cpu")
    assert device("auto", None, there=4, rank=3) == torch.device("cuda", 3)
    assert device("cpu", None, there=1) == torch.device("cpu")
    with pytest.raises(ProblemError, match="0 of 1"):
        device("cuda", None, there=0)


def test_a_pod_uses_the_gpus_that_it_requests_or_fails() -> None:
    assert device("auto", 4, there=4, rank=3) == torch.device("cuda", 3)
    for there in (0, 3):
        with pytest.raises(ProblemError, match=f"{there} of 4") as caught:
            device("auto", 4, there=there)
        assert caught.value.problem.reason == "DeviceMissing"
    assert device("auto", 0, there=4) == torch.device("cpu"), "GPUs that others requested"
    assert device("cpu", 4, there=0) == torch.device("cpu"), "RLRUN_DEVICE in the RLModel's trainer.env"
    with pytest.raises(ProblemError, match="0 of 1"):
        device("cuda", 0, there=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU")
def test_a_machine_without_a_gpu_has_a_problem_with_a_remedy() -> None:
    found = cuda_problem(1, 0)
    assert found is not None
    # The image for CPUs has torch with CUDA's name in its version, and no driver.
    assert "torch without CUDA" in found or "no driver library" in found


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
    ("setting", "device", "flash", "attentions"),
    [
        ("auto", "cuda", True, ("flash_attention_2", "sdpa", "eager")),
        ("auto", "cuda", False, ("sdpa", "eager")),
        ("auto", "cpu", True, ("sdpa", "eager")),
        ("eager", "cuda", True, ("eager",)),
        ("varlen", "cuda", True, ("sdpa", "eager")),
    ],
)
def test_attentions(setting: str, device: str, flash: bool, attentions: tuple[str, ...]) -> None:
    assert attentions_of(setting, device, flash) == attentions


@pytest.mark.parametrize(
    ("setting", "device", "wanted"),
    [("auto", "cuda", True), ("auto", "cpu", False), ("on", "cpu", True), ("off", "cuda", False)],
)
def test_recomputed_activations(setting: str, device: str, wanted: bool) -> None:
    assert recomputes(setting, device) == wanted


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
            "TrainerOutOfMemory",
        ),
        (torch.OutOfMemoryError("CUDA out of memory."), "TrainerOutOfMemory"),
        (OSError("No such file."), "ModelLoadFailed"),
        (RuntimeError("The sizes differ."), "ModelUnsupported"),
    ],
)
def test_a_failure_to_load_has_its_cause_and_one_period(raised: Exception, reason: str) -> None:
    loader = Loader(TrainerSettings(device="cpu"), ProcessGroup())
    with pytest.raises(ProblemError) as caught, loader.explain_failures():
        raise raised
    assert caught.value.problem.reason == reason
    assert str(raised) in caught.value.problem.message
    assert ".." not in caught.value.problem.message
