"""The archive for containerd carries what it lacks, under every wanted name, and nothing twice."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from local_cluster.images.oci_archive import StoredImage, sha256, write_archive

LAYERS = {sha256(content): content for content in (b"base layer", b"code")}


@pytest.fixture
def image() -> StoredImage:
    layers = [{"digest": digest, "size": len(content)} for digest, content in LAYERS.items()]
    manifest = {"mediaType": "application/manifest", "config": {"digest": sha256(b"config")}, "layers": layers}
    return StoredImage(json.dumps(manifest).encode(), b"config")


@contextmanager
def open_layer(digest: str) -> Iterator[IO[bytes]]:
    yield io.BytesIO(LAYERS[digest])


def archive(image: StoredImage, names: list[str], without: set[str]) -> dict[str, bytes]:
    sink = io.BytesIO()
    write_archive(image, names, without, open_layer, sink)
    sink.seek(0)
    with tarfile.open(fileobj=sink) as tar:
        members = tar.getmembers()
        assert len({member.name for member in members}) == len(members)
        return {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def test_archive_contains_every_blob_and_every_image_name(image: StoredImage) -> None:
    files = archive(image, ["one:key", "one:local"], set())
    blobs = {name: content for name, content in files.items() if name.startswith("blobs/")}
    assert set(blobs.values()) == {b"base layer", b"code", b"config", image.manifest}
    assert all(name == f"blobs/{sha256(content).replace(':', '/')}" for name, content in blobs.items())
    index = json.loads(files["index.json"])
    assert [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]] == [
        "one:key",
        "one:local",
    ]
    assert {entry["digest"] for entry in index["manifests"]} == {sha256(image.manifest)}


def test_known_layers_are_left_out(image: StoredImage) -> None:
    contents = set(archive(image, ["one:key"], {sha256(b"base layer")}).values())
    assert b"base layer" not in contents
    assert b"code" in contents


def test_a_layer_shorter_than_its_manifest_says_is_an_error(image: StoredImage) -> None:
    """A stream that broke off must not become an image."""

    @contextmanager
    def broken(digest: str) -> Iterator[IO[bytes]]:
        yield io.BytesIO(LAYERS[digest][:-1])

    with pytest.raises(OSError, match="unexpected end of data"):
        write_archive(image, ["one:key"], (), broken, io.BytesIO())
