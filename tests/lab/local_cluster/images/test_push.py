"""Images for a cluster of one's own: commands of the builder, and the values of the chart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from local_cluster.host.errors import LocalClusterError
from local_cluster.images.push import CPU_IMAGES, GPU_IMAGES, find_builder, push_images, tags_of, values
from tests.support.source_tree import ROOT
from tests.unit.chart.conftest import Render, helm, render, template

__all__ = ["helm", "render", "template"]


def commands(builder: str, *, base: str = "", tag: str = "1.0", cpu: bool = False) -> list[list[str]]:
    found: list[list[str]] = []
    tagged = tags_of(CPU_IMAGES if cpu else GPU_IMAGES, tag)
    push_images(tagged, "registry.example.com/ml", builder, base, lambda command: found.append(list(command)))
    return found


@pytest.mark.parametrize(("builder", "verb"), [("docker", "build"), ("podman", "build"), ("buildah", "bud")])
def test_all_are_built_before_one_is_pushed(builder: str, verb: str) -> None:
    found = commands(builder)
    assert [command[:2] for command in found] == [[builder, verb]] * 3 + [[builder, "push"]] * 3
    names = [f"registry.example.com/ml/rlrun-{name}:1.0" for name in ("operator", "orchestrator", "trainer")]
    assert [command[-1] for command in found[3:]] == names
    assert [command[command.index("--tag") + 1] for command in found[:3]] == names
    for command in found[:3]:
        assert Path(command[command.index("--file") + 1]).is_file()
        assert command[-1] == str(ROOT)


def test_images_without_gpus_have_the_engine_for_cpus() -> None:
    found = commands("docker", cpu=True, base="mirror/python:3.11")
    assert found[2][2:6] == ["--build-arg", "TORCH=cpu", "--build-arg", "BASE_IMAGE=mirror/python:3.11"]
    assert found[-1][-1] == "registry.example.com/ml/rlrun-inference-cpu:1.0"


def test_without_a_tag_the_content_decides() -> None:
    first, second = tags_of(GPU_IMAGES, ""), tags_of(CPU_IMAGES, "")
    assert first == tags_of(GPU_IMAGES, "")
    assert first[GPU_IMAGES[0]] == second[CPU_IMAGES[0]]
    assert first[GPU_IMAGES[2]] != second[CPU_IMAGES[2]], "cuda and cpu"


@pytest.mark.parametrize("registry", ["", "UPPER/x", "https://r.io", "r.io/", "r.io/a b", "-x", "r.io/a;b"])
def test_a_registry_that_is_none_is_refused(registry: str) -> None:
    with pytest.raises(LocalClusterError, match="REGISTRY"):
        push_images(tags_of(GPU_IMAGES, "1"), registry, "docker", "", lambda _: None)


def test_a_tag_that_is_none_is_refused() -> None:
    with pytest.raises(LocalClusterError, match="TAG"):
        tags_of(GPU_IMAGES, "a b")


def test_the_builder_is_the_first_that_is_installed() -> None:
    assert find_builder("", {"podman": "/p", "buildah": "/b"}.get) == "podman"
    assert find_builder("buildah", {"podman": "/p", "buildah": "/b"}.get) == "buildah"
    with pytest.raises(LocalClusterError, match="docker or podman or buildah is not installed"):
        find_builder("", lambda _: None)
    with pytest.raises(LocalClusterError, match="not one of"):
        find_builder("kaniko")


@pytest.mark.slow
@pytest.mark.parametrize("cpu", [False, True])
def test_the_chart_takes_the_values(render: Render, cpu: bool) -> None:
    found = yaml.safe_load(values(tags_of(CPU_IMAGES if cpu else GPU_IMAGES, "1.0"), "r.io/ml"))
    chart = render({**found, "s3": {"bucket": "bucket", "credentials": {"existingSecret": "s"}}}, base=None)
    images = yaml.safe_load(chart.settings)["images"]
    assert images["trainer"]["repository"] == "r.io/ml/rlrun-trainer"
    assert images["trainer"]["tag"] == "1.0"
    engine = "r.io/ml/rlrun-inference-cpu" if cpu else "vllm/vllm-openai"
    assert images["inference"]["repository"] == engine
    assert chart.one("Deployment", "rlrun-operator")["spec"]["template"]["spec"]["containers"][0]["image"] == (
        "r.io/ml/rlrun-operator:1.0"
    )


@pytest.mark.slow
def test_make_push(tmp_path: Path) -> None:
    """The target itself, with a builder that keeps what it is asked."""
    builder, log = tmp_path / "docker", tmp_path / "log"
    builder.write_text(f'#!/bin/sh\necho "$1" >> {log}\n[ "$1" != push ] || [ -z "$REFUSE" ]\n')
    builder.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    def make(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "-s", "push", f"PYTHON3={sys.executable}", "REGISTRY=r.io/ml", "TAG=1.0"],
            cwd=ROOT, env={**os.environ, "PATH": path, **env}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = make()
    assert (done.returncode, done.stdout) == (0, "build/images.yaml\n"), done.stderr
    assert log.read_text().split() == ["build"] * 3 + ["push"] * 3
    assert yaml.safe_load((ROOT / "build/images.yaml").read_text())["images"]["registry"] == "r.io/ml"
    refused = make(REFUSE="1")
    assert refused.returncode != 0
    assert "docker login" in refused.stderr
