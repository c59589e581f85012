"""The lists of the environment image's packages are those of its locks."""

import pytest
from rlrun.storage.environment_image import LISTS, PYTHON, Generation, image_packages, owner_of_module

from tests.support.environment_image import COMMAND, text
from tests.support.source_tree import ROOT


@pytest.mark.parametrize("generation", Generation)
def test_the_list_is_up_to_date(generation: Generation) -> None:
    assert LISTS[generation].read_text(encoding="utf-8") == text(generation), f"run `{COMMAND}`"
    assert image_packages(generation)["pyyaml"].modules == ("_yaml", "yaml")


def test_the_python_is_that_of_the_image() -> None:
    dockerfile = (ROOT / "orchestrator_image" / "Dockerfile").read_text()
    assert f"ARG BASE_IMAGE=python:{PYTHON}-" in dockerfile
    assert f"lib/python{PYTHON}/site-packages" in dockerfile
    assert all(f"environment-{generation}.lock" in dockerfile for generation in Generation)


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("json", "Python"),
        ("test", "Python"),
        ("yaml", "pyyaml"),
        ("verifiers", "verifiers"),
        ("agents", "openai-agents"),
        ("mcp_types", "mcp-types"),
        ("rlrun", "the platform"),
    ],
)
def test_modules_of_the_image_have_owners(module: str, owner: str) -> None:
    assert owner_of_module(module) == owner
    assert owner_of_module("reverse_text") is None
