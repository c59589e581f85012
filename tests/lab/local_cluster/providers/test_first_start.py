"""Steps ahead of a first start."""

from pathlib import Path

import pytest

from local_cluster.host.paths import Paths
from local_cluster.images.catalog import CHAINS, IMAGES
from local_cluster.providers import first_start
from local_cluster.providers.first_start import SECONDS, steps_ahead


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setattr(first_start, "missing_system_packages", lambda: ["buildah"])
    monkeypatch.setattr(first_start, "missing_images", lambda: list(IMAGES))
    return Paths(state=tmp_path / "state", cache=tmp_path / "cache")


def test_every_step_of_a_first_start_has_an_expected_time(empty: Paths) -> None:
    plan = steps_ahead(empty, images=True)
    assert plan is not None
    assert set(plan.steps) == SECONDS.keys()
    assert len(plan.tracks) == 1 + len(CHAINS)


def test_images_are_left_out_unless_they_are_asked_for(empty: Paths) -> None:
    plan = steps_ahead(empty, images=False)
    assert plan is not None
    assert not any("rlrun-" in step for step in plan.steps)


def test_nothing_is_ahead_when_all_is_there(empty: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_start, "missing_images", lambda: [])
    monkeypatch.setattr(first_start, "missing_builds", lambda names, paths: [])
    assert steps_ahead(empty, images=True) is None


def test_one_image_is_built_and_imported(empty: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = next(image for image in IMAGES if image.short == "operator")
    monkeypatch.setattr(first_start, "missing_system_packages", lambda: [])
    monkeypatch.setattr(first_start, "missing_images", lambda: [operator])
    monkeypatch.setattr(first_start, "missing_builds", lambda names, paths: [])
    plan = steps_ahead(empty, images=True)
    assert plan is not None
    assert [track[-1] for track in plan.tracks if track] == ["build rlrun-operator"]
    assert plan.then == ("import rlrun-operator",)
