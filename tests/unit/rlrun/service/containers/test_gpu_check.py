"""GPUs that are missing: each cause has its own message, with the remedy."""

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.containers import gpu_check
from rlrun.service.containers.gpu_check import (
    GpuFacts,
    driver_version,
    gpu_failure_message,
    inspect,
    main,
    problem,
    required_gpus,
    torch_cuda,
)
from rlrun.service.exit import TERMINATION_LOG_VARIABLE

GOOD = GpuFacts("13.0", "580.65.06", True, 13000, 0, "", 4)


class Driver:
    """libcuda with some GPUs, or an error."""

    def __init__(self, version: int = 13000, count: int = 1, error: int = 0) -> None:
        self.version, self.count, self.error = version, count, error

    def cuDriverGetVersion(self, pointer: Any) -> int:
        pointer._obj.value = self.version
        return 0

    def cuInit(self, flags: int) -> int:
        return self.error

    def cuDeviceGetCount(self, pointer: Any) -> int:
        pointer._obj.value = self.count
        return 0

    def cuGetErrorString(self, error: int, pointer: Any) -> int:
        pointer._obj.value = b"system not yet initialized"
        return 0


def no_library(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def test_enough_gpus_are_no_problem() -> None:
    assert problem(GOOD, 4, "trainer") is None
    assert problem(GOOD, 1, "inference") is None
    # Within a major version, and for an image that does not say what it needs, the driver suffices.
    assert problem(GpuFacts("13.2", "580.65.06", True, 13000, visible=1), 1, "trainer") is None
    assert problem(GpuFacts(None, "470.1", True, 11040, visible=1), 1, "inference") is None
    # vLLM's image can bring a newer library of the driver.
    assert problem(GpuFacts("13.0", "535.1.1", True, 12020, visible=1, has_compatibility=True), 1, "inference") is None


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        (GpuFacts("", "580.65.06", True, 13000, visible=4), ["torch without CUDA", "make push", "trainer.gpus"]),
        (GpuFacts("13.0"), ["no driver library", "node gpu-7", "no NVIDIA driver", "container toolkit"]),
        (GpuFacts("13.0", "580.65.06"), ["no driver library", "driver 580.65.06", "runtimeClassName", "trainer.gpus"]),
        (
            GpuFacts("13.0", "550.90.07", True, 12040, visible=4),
            ["too old for the image's CUDA 13.0", "driver 550.90.07", "CUDA 12.4", "Install driver 580 or newer"],
        ),
        (GpuFacts("12.8", "470.1.1", True, 11040, visible=4), ["driver 525 or newer"]),
        (GpuFacts("14.1", "580.1.1", True, 13000, visible=4), ["driver for CUDA 14 or newer"]),
        (GpuFacts("13.0", "580.1.1", True, 13000, 100, "no device"), ["error 100 (no device)", "CUDA_VISIBLE_DEVICES"]),
        (GpuFacts("13.0", "580.1.1", True, 13000, 802, "not ready"), ["error 802", "fabric manager"]),
        (GpuFacts("13.0", "580.1.1", True, 13000, 803), ["error 803 on", "Restart the node"]),
        (GpuFacts("13.0", "580.1.1", True, 13000, 999, "unknown error"), ["error 999", "nvidia-smi", "xid"]),
        (GpuFacts("13.0", "580.1.1", True, 13000, visible=3), ["requests 4 GPUs", "CUDA sees only 3", "MIG"]),
    ],
)
def test_each_cause_has_its_remedy(facts: GpuFacts, parts: list[str]) -> None:
    found = problem(facts, 4, "trainer", "gpu-7")
    assert found is not None
    assert [part for part in ["requests 4 GPUs for each trainer pod", *parts] if part not in found] == []
    assert len(found) < 700, "Kubernetes and `kubectl describe` cut long messages"


def test_a_gpu_that_cannot_compute_says_why() -> None:
    found = gpu_failure_message("CUDA error: no kernel image is available for this device\nmore lines", "trainer", "n")
    assert "node n failed: CUDA error: no kernel image is available" in found
    assert "trainer.image" in found
    assert "more lines" not in found


def test_the_driver_is_asked() -> None:
    found = inspect({}, lambda name: Driver(12040, 2))
    assert (found.has_library, found.driver_cuda, found.visible, found.error) == (True, 12040, 2, 0)
    failed = inspect({"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}, lambda name: Driver(error=802))
    assert (failed.error, failed.error_text) == (802, "system not yet initialized")
    assert failed.has_compatibility
    assert not inspect({}, no_library).has_library
    assert ctypes.c_int().value == 0


@pytest.mark.parametrize(
    "folder",
    [
        "/usr/local/nvidia/lib64",
        "/usr/lib/wsl/lib",
        "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/local/glibc/usr/lib",
        "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia",
        "/opt/own/nvidia/lib64",
    ],
)
def test_a_driver_beside_the_path_of_the_loader_is_found_and_no_other_is_advised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    def load(name: str) -> Any:
        return Driver() if name == f"{folder}/libcuda.so.1" else no_library(name)

    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / ro - overlay overlay ro\n"
        "2 1 8:1 /usr/lib/libcuda.so.580.1.1 /x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/libcuda.so.580.1.1 "
        "ro - ext4 /dev/sda ro\n"
        "3 1 8:1 /home/nvidia /opt/own/nvidia ro - ext4 /dev/sda ro\n"
    )
    monkeypatch.setattr(gpu_check, "MOUNTS", mounts)
    found = inspect({"LD_LIBRARY_PATH": "/of/the/image"}, load)
    assert (found.has_library, found.place) == (True, folder)
    told = problem(found, 1, "trainer", "gpu-7") or ""
    assert f"LD_LIBRARY_PATH in trainer.env of the RLModel to {folder}:/of/the/image" in told
    assert "Install" not in told
    assert len(told) < 700


@pytest.mark.parametrize(
    ("facts", "parts"),
    [
        (GpuFacts("13.0", has_library=True, visible=1), []),
        (GpuFacts("13.0", "580.1.1", has_library=True, visible=1), []),
        (GpuFacts("13.0", has_library=True, error=999), ["CUDA does not start: error 999", "no version in /proc/"]),
        (GpuFacts("13.0", has_library=True, driver_cuda=12040, visible=1), ["supports CUDA 12.4", "driver 580"]),
        (
            GpuFacts("13.0"),
            [
                "no driver library",
                "Searched: ",
                "/usr/local/nvidia/lib64",
                "no NVIDIA driver in /proc/driver/nvidia/version",
            ],
        ),
    ],
)
def test_a_fact_that_is_missing_is_said_to_be_and_is_no_old_driver(facts: GpuFacts, parts: list[str]) -> None:
    found = problem(facts, 1, "trainer", "gpu-7")
    assert (found is None) is (not parts)
    assert [part for part in parts if part not in (found or "")] == []
    assert ("too old" in (found or "")) is (facts.driver_cuda > 0)
    assert "of an unknown version" not in (found or "")
    assert len(found or "") < 700


def test_only_a_node_without_a_driver_is_told_to_install_one() -> None:
    assert "Install the driver" in (problem(GpuFacts("13.0"), 1, "trainer") or "")
    assert "Install the driver" not in (problem(GpuFacts("13.0", "580.65.06"), 1, "trainer") or "")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__version__ = '2.13.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\ngit_version = 'a'\n", "13.0"),
        ("cuda = '12.8'\nhip: Optional[str] = None\n", "12.8"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ""),
        ("__version__ = '3'\n", None),
    ],
)
def test_the_cuda_version_of_torch_is_read_without_importing_it(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version.py").write_text(text)
    assert torch_cuda(tmp_path) == version
    assert torch_cuda(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("nothing", None),
    ],
)
def test_the_version_of_the_driver_is_that_of_its_module(tmp_path: Path, line: str, version: str | None) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    assert driver_version(tmp_path / "version") == version
    assert driver_version(tmp_path / "none") is None


def test_an_rlmodel_may_allow_pods_to_run_without_their_gpus() -> None:
    assert required_gpus({"RLRUN_GPUS": "4"}) == 4
    assert required_gpus({"RLRUN_GPUS": "4", "RLRUN_DEVICE": "auto"}) == 4
    assert required_gpus({"RLRUN_GPUS": "4", "RLRUN_DEVICE": "cpu"}) == 0
    assert required_gpus({}) == 0


def test_a_problem_is_the_termination_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "inspect", lambda environ: GpuFacts("13.0", "550.1.1", True, 12040, visible=1))
    log = tmp_path / "log"
    environ = {"RLRUN_GPUS": "1", "RLRUN_NODE": "gpu-7", TERMINATION_LOG_VARIABLE: str(log)}
    assert main(["inference"], environ) == ExitCode.CONFIGURATION
    told = Problem.model_validate(json.loads(log.read_text()))
    assert told.reason == Reason.DEVICE_MISSING
    assert "inference.image" in told.message
    assert "gpu-7" in told.message
    log.unlink()
    assert main(["inference"], {**environ, "RLRUN_DEVICE": "cpu"}) == 0
    monkeypatch.setattr(gpu_check, "inspect", lambda environ: GOOD)
    assert main(["trainer"], environ) == 0
    assert not log.exists()


def test_the_image_of_the_trainer_searches_the_folder_of_the_driver_on_gke() -> None:
    dockerfile = (Path(__file__).parents[5] / "trainer_image" / "Dockerfile").read_text()
    (paths,) = re.findall(r"LD_LIBRARY_PATH=(\S+)", dockerfile)
    assert "/usr/local/nvidia/lib64" in paths.split(":")
    assert "PATH=/usr/local/nvidia/bin:$PATH" in dockerfile
