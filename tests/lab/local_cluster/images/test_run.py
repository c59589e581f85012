"""Execution of commands inside images."""

from __future__ import annotations

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY
from local_cluster.images.run import TEST_TOOLS, locked_packages, module_path
from tests.support.locks import PIN


def test_test_tools_have_the_versions_of_the_development_lock() -> None:
    lock = (REPOSITORY / "requirements/dev.lock").read_text()
    found = locked_packages(lock, TEST_TOOLS)
    assert [pin["name"] for pin in PIN.finditer(found)] == list(TEST_TOOLS)
    assert PIN.sub("", found) == ""
    with pytest.raises(LocalClusterError, match="nosuchpackage"):
        locked_packages(lock, ["pytest", "nosuchpackage"])


def test_module_path_of_the_image_is_that_of_pytest() -> None:
    project = '[tool.pytest.ini_options]\npythonpath = ["core", "trainer_image", "."]\n'
    assert module_path(project) == ["/repository/core", "/repository/trainer_image", "/repository"]
    assert "/repository" in module_path((REPOSITORY / "pyproject.toml").read_text())
