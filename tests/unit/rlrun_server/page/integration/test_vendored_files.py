"""The page's libraries are those of `vendor.json`, byte for byte, with their licences."""

import hashlib
import json
import re
from typing import Any

import pytest

from tests.support.source_tree import ROOT

FOLDER = ROOT / "server/rlrun_server/page/static/vendor"
PACKAGES: list[dict[str, Any]] = json.loads((FOLDER / "vendor.json").read_text("utf-8"))
LICENCES = {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License", "BSD-3-Clause": "Redistribution and"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["package"])
def test_files_are_those_of_the_package(package: dict[str, Any]) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", package["version"])
    assert package["integrity"].startswith("sha512-")
    for file in package["files"]:
        digest = hashlib.sha256((FOLDER / file["name"]).read_bytes()).hexdigest()
        assert digest == file["sha256"], f"{file['name']} was edited: run `make vendor`"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["package"])
def test_each_package_comes_with_its_licence(package: dict[str, Any]) -> None:
    (licence,) = (file["name"] for file in package["files"] if file["source"] == "LICENSE")
    assert LICENCES[package["license"]] in (FOLDER / licence).read_text("utf-8")


def test_there_are_no_other_files() -> None:
    listed = {file["name"] for package in PACKAGES for file in package["files"]}
    assert {file.name for file in FOLDER.iterdir()} == listed | {"vendor.json"}


def test_no_address_of_a_registry_is_kept() -> None:
    assert "://" not in (FOLDER / "vendor.json").read_text("utf-8")
