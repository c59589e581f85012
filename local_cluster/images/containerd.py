"""Images from buildah's storage into containerd, layers that are there already left out.

`ctr images import` reads every blob of an archive, and `buildah push` writes every layer into one: 4 GB for a changed
line of code. Two facts avoid both. buildah does not write a layer that the target directory seems to have, so the
directory gets an empty (sparse) file of the right name and size for each layer in containerd's content store. And
containerd does not miss a layer in an archive as long as it has it. The archive is then the manifest, the
configuration and the new layers, streamed uncompressed, since compressing takes longer than copying.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import IO

from local_cluster.errors import LocalClusterError
from local_cluster.images.buildah import buildah
from local_cluster.images.catalog import LOCAL_TAG, Image
from local_cluster.node import ctr_command
from local_cluster.paths import paths
from local_cluster.progress import progress
from local_cluster.shell import run, tail

_NAME = "io.containerd.image.name"
_IMPORT_SECONDS = 900.0
_CLUSTER_HINT = "Is the cluster up? `python -m local_cluster status`"


def image_digests() -> dict[str, str]:
    """Names of containerd's images, each with the digest of its manifest."""
    rows = run([*ctr_command(), "images", "list"], next_step=_CLUSTER_HINT).stdout.splitlines()[1:]
    cells = [row.split() for row in rows]
    return {row[0]: row[2] for row in cells if len(row) > 2}


def import_image(image: Image, key: str) -> None:
    """Move one built image into containerd, named by its key and as `local`.

    Raises:
        LocalClusterError: buildah does not have it, or containerd does not take it.
    """
    folder = paths().cache / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with progress.step(f"import {image.name}:{key}"), tempfile.TemporaryDirectory(dir=folder, prefix="push-") as layout:
        known = known_layers(image_digests())
        place_known_layers(Path(layout), known)
        buildah(
            *(
                "push",
                "--quiet",
                "--disable-compression",
                "--format",
                "oci",
                image.reference(key),
                f"oci:{layout}:image",
            ),
            next_step=f"`python -m local_cluster.images build {image.short}` makes it.",
        )
        names = (image.reference(key), image.reference(LOCAL_TAG))
        _stream(Path(layout), names, without=known)


def forget_earlier(image: Image, key: str) -> None:
    """Remove the names of earlier builds; containerd then collects what only they needed."""
    keep = (image.reference(key), image.reference(LOCAL_TAG))
    earlier = [name for name in image_digests() if name.startswith(image.reference("")) and name not in keep]
    if earlier:
        run([*ctr_command(), "images", "remove", *earlier], next_step=_CLUSTER_HINT)


def known_layers(images: Mapping[str, str]) -> dict[str, int]:
    """Layers that containerd holds for the product's images: digest to size in bytes."""
    layers: dict[str, int] = {}
    for digest in {digest for name, digest in images.items() if "/rlrun-" in name}:
        manifest = json.loads(run([*ctr_command(), "content", "get", digest], next_step=_CLUSTER_HINT).stdout)
        layers |= {layer["digest"]: layer["size"] for layer in manifest.get("layers", [])}
    return layers


def place_known_layers(layout: Path, known: Mapping[str, int]) -> None:
    """Put an empty file of the right name and size for each known layer into an OCI layout."""
    for digest, size in known.items():
        blob = _blob(layout, digest)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with blob.open("wb") as handle:
            handle.truncate(size)


def write_archive(layout: Path, names: Sequence[str], without: Container[str], sink: IO[bytes]) -> None:
    """An OCI archive of the one image in a layout, as a stream.

    Args:
        layout: The directory that buildah wrote.
        names: What the image is to be called.
        without: Digests of layers to leave out.
        sink: Where the tar goes.
    """
    index = json.loads((layout / "index.json").read_text())
    (image,) = index["manifests"]
    index["manifests"] = [{**image, "annotations": {_NAME: name}} for name in names]
    manifest = json.loads(_blob(layout, image["digest"]).read_text())
    blobs = [image["digest"], manifest["config"]["digest"]]
    blobs += [layer["digest"] for layer in manifest["layers"] if layer["digest"] not in without]
    with tarfile.open(fileobj=sink, mode="w|", bufsize=1 << 20) as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps(index).encode())
        for digest in blobs:
            tar.add(_blob(layout, digest), arcname=f"blobs/{digest.replace(':', '/')}")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def _stream(layout: Path, names: Sequence[str], without: Container[str]) -> None:
    """Feed the archive to `ctr images import`, which also unpacks it."""
    command = [*ctr_command(), "images", "import", "-"]
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as importer,
    ):
        assert importer.stdin is not None
        try:
            write_archive(layout, names, without, importer.stdin)
            importer.stdin.close()
        except BrokenPipeError:
            pass  # the importer ended early; its own words below say why
        status = importer.wait(timeout=_IMPORT_SECONDS)
        if status != 0:
            output.seek(0)
            raise LocalClusterError(f"containerd did not take {names[0]}:\n{tail(output.read())}\n{_CLUSTER_HINT}")
