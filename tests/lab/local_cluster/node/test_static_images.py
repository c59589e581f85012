"""Images of one executable."""

import json
import tarfile
from pathlib import Path

import pytest

from local_cluster.node.static_images import BinaryImage


def test_image_reference_depends_on_its_content(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_bytes(b"\x7fELF one")
    archive = tmp_path / "tool.tar"
    reference = BinaryImage("tool", program).write(archive)
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or pytest.fail("no manifest"))
        config = json.load(tar.extractfile(manifest[0]["Config"]) or pytest.fail("no config"))
        with tarfile.open(fileobj=tar.extractfile("layer.tar")) as layer:
            assert layer.getmember("tool").mode == 0o755
    assert manifest[0]["RepoTags"] == [reference]
    assert config["config"]["Entrypoint"] == ["/tool"]
    other = tmp_path / "other"
    other.write_bytes(b"\x7fELF two")
    assert BinaryImage("tool", other).reference != reference
