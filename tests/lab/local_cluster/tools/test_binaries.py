"""Builds of the Go programs."""

from pathlib import Path

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY, Paths
from local_cluster.tools.binaries import BUILDS, PROGRAMS, Build, cache_key, missing_builds, program


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "go.mod").write_text("module thing\n")
    (folder / "main.go").write_text("package main\n")
    return tmp_path


def test_key_changes_with_the_sources_only(sources: Path) -> None:
    build = Build("thing", (".",))
    first = cache_key(build, sources)
    (sources / "thing" / "README").write_text("not built")
    assert cache_key(build, sources) == first
    (sources / "thing" / "go.mod").write_text("module thing\n\ngo 1.26\n")
    second = cache_key(build, sources)
    (sources / "thing" / "other").mkdir()
    (sources / "thing" / "other" / "main.go").write_text("package main\n")
    assert len({first, second, cache_key(build, sources)}) == 3


def test_key_changes_with_the_flags(sources: Path) -> None:
    keys = {
        cache_key(Build("thing", (".",)), sources),
        cache_key(Build("thing", (".",), stamps=("a.b=1",)), sources),
        cache_key(Build("thing", (".",), stamps=("a.b=2",)), sources),
        cache_key(Build("thing", ("./cmd",)), sources),
        cache_key(Build("thing", ("./cmd", "./other")), sources),
        cache_key(Build("thing", (".",), links=(("other", "thing"),)), sources),
        cache_key(Build("thing", (".",), tags=("other",)), sources),
    }
    assert len(keys) == 7


def test_every_build_has_pinned_sources() -> None:
    folder = REPOSITORY / "local_cluster" / "go"
    assert {build.name for build in BUILDS} == {module.parent.name for module in folder.glob("*/go.mod")}
    for build in BUILDS:
        assert (folder / build.name / "go.sum").exists()
        for package in build.packages:
            if package.startswith("./"):
                assert list((folder / build.name / package).glob("*.go")), package


def test_linked_program_is_in_the_folder_of_its_binary(tmp_path: Path) -> None:
    paths = Paths(state=tmp_path / "state", cache=tmp_path / "cache")
    assert program("kubelet", paths).parent == program("kubectl", paths).parent
    assert program("kubelet", paths).name == "kubelet"
    assert {"etcd", "coredns", "pause", "helm"} <= PROGRAMS.keys()
    assert "kubernetes" not in PROGRAMS


def test_cluster_is_one_build(tmp_path: Path) -> None:
    """Its programs share packages, and a build that is not one build compiles these again."""
    assert [build.name for build in BUILDS if build.in_cluster] == ["cluster"]


def test_missing_until_every_program_is_there(tmp_path: Path) -> None:
    paths = Paths(state=tmp_path / "state", cache=tmp_path / "cache")
    build = PROGRAMS["kubelet"]
    for name in build.programs:
        assert missing_builds(["cluster"], paths) == [build]
        program(name, paths).parent.mkdir(parents=True, exist_ok=True)
        program(name, paths).touch()
    assert missing_builds(["cluster"], paths) == []


def test_unknown_program_is_rejected_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="kubectl"):
        program("kubeadm", Paths(state=tmp_path, cache=tmp_path))
