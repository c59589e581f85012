"""Locks pin every package to one version and fit together where images share a layer."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LOCKS = sorted((REPOSITORY / "requirements").glob("*.lock"))


def pins(name: str) -> dict[str, str]:
    lines = (REPOSITORY / "requirements" / f"{name}.lock").read_text().split()
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_line_is_a_pin_and_no_url(lock: Path) -> None:
    assert lock.read_text().strip()
    for line in lock.read_text().splitlines():
        assert line.count("==") == 1, line
        assert "/" not in line, line


def test_pins_of_the_cpu_layer_are_a_subset_of_the_gpu_layer() -> None:
    cpu, gpu = pins("torch-cpu"), pins("torch-cuda")
    assert cpu.items() < gpu.items()
    assert cpu["torch"] == gpu["torch"]


@pytest.mark.parametrize("name", ["trainer", "inference-cpu"])
def test_upper_layers_pin_no_package_of_the_torch_layer(name: str) -> None:
    assert not pins(name).keys() & pins("torch-cuda").keys()


@pytest.mark.parametrize("name", ["operator", "trainer", "orchestrator"])
def test_images_with_project_code_have_the_build_backend(name: str) -> None:
    assert "hatchling" in pins(name)
