"""The archive for containerd carries what it lacks, under every wanted name, and nothing twice."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from local_cluster.images.containerd import place_known_layers, write_archive


def put(layout: Path, content: bytes) -> dict[str, object]:
    digest = hashlib.sha256(content).hexdigest()
    folder = layout / "blobs/sha256"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """What buildah writes: two layers, a configuration, a manifest, an index."""
    manifest = {"config": put(tmp_path, b"config"), "layers": [put(tmp_path, b"base layer"), put(tmp_path, b"code")]}
    described = put(tmp_path, json.dumps(manifest).encode())
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    return tmp_path


def read(stream: io.BytesIO) -> dict[str, bytes]:
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        members = tar.getmembers()
        assert len({member.name for member in members}) == len(members)
        return {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def test_every_blob_and_every_name(layout: Path) -> None:
    sink = io.BytesIO()
    write_archive(layout, ["one:key", "one:local"], without=(), sink=sink)
    files = read(sink)
    blobs = {name: content for name, content in files.items() if name.startswith("blobs/")}
    assert {b"base layer", b"code", b"config"} < set(blobs.values())
    assert all(name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}" for name, content in blobs.items())
    index = json.loads(files["index.json"])
    assert [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]] == [
        "one:key",
        "one:local",
    ]
    assert len({entry["digest"] for entry in index["manifests"]}) == 1


def test_known_layers_are_left_out(layout: Path) -> None:
    known = "sha256:" + hashlib.sha256(b"base layer").hexdigest()
    sink = io.BytesIO()
    write_archive(layout, ["one:key"], without={known: 10}, sink=sink)
    contents = set(read(sink).values())
    assert b"base layer" not in contents
    assert b"code" in contents


def test_placeholder_has_the_size_and_takes_no_room(tmp_path: Path) -> None:
    place_known_layers(tmp_path, {"sha256:abc": 3 << 30})
    status = (tmp_path / "blobs/sha256/abc").stat()
    assert status.st_size == 3 << 30
    assert status.st_blocks * 512 < 1 << 20
