"""The list of the environment image's packages is the one of its lock."""

import pytest
from rlrun.storage.environment_image import LIST, PYTHON, image_packages, owner_of_module

from tests.support.environment_image import COMMAND, text
from tests.support.source_tree import ROOT


def test_the_list_is_up_to_date() -> None:
    assert LIST.read_text(encoding="utf-8") == text(), f"run `{COMMAND}`"
    assert image_packages()["pyyaml"].modules == ("_yaml", "yaml")


def test_the_python_is_that_of_the_image() -> None:
    assert f"ARG BASE_IMAGE=python:{PYTHON}-" in (ROOT / "orchestrator_image" / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("module", "owner"),
    [("json", "Python"), ("test", "Python"), ("yaml", "pyyaml"), ("verifiers", "verifiers"), ("rlrun", "the platform")],
)
def test_modules_of_the_image_have_owners(module: str, owner: str) -> None:
    assert owner_of_module(module) == owner
    assert owner_of_module("reverse_text") is None
