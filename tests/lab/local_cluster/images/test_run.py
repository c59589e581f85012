"""Execution of commands inside images."""

from __future__ import annotations

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY
from local_cluster.images.run import TEST_TOOLS, module_path, pinned_lines


def test_test_tools_have_the_versions_of_the_development_lock() -> None:
    lock = (REPOSITORY / "requirements/dev.lock").read_text()
    assert [line.split("==")[0] for line in pinned_lines(lock, TEST_TOOLS)] == list(TEST_TOOLS)
    with pytest.raises(LocalClusterError, match="nosuchpackage"):
        pinned_lines(lock, ["pytest", "nosuchpackage"])


def test_module_path_of_the_image_is_that_of_pytest() -> None:
    project = '[tool.pytest.ini_options]\npythonpath = ["core", "trainer_image", "."]\n'
    assert module_path(project) == ["/repository/core", "/repository/trainer_image", "/repository"]
    assert "/repository" in module_path((REPOSITORY / "pyproject.toml").read_text())
