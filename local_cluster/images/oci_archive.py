"""Stream of an image in the OCI archive format, read from buildah's storage.

`buildah push` would compress every layer or write it to disk again, 4 GB for one changed line of code. The storage
already has all parts: manifest and configuration as text, and each layer as the tar with the named digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.shell import run
from local_cluster.images.buildah import buildah

NAME_ANNOTATION = "io.containerd.image.name"
_BLOCK = 1 << 20
OpenLayer = Callable[[str], AbstractContextManager[IO[bytes]]]


@dataclass(frozen=True)
class StoredImage:
    """Manifest and configuration of an image. Its layers are in the storage, identified by their digests."""

    manifest: bytes
    config: bytes

    @property
    def layers(self) -> dict[str, int]:
        """Digest and size in bytes of each layer, lowest first."""
        return {layer["digest"]: layer["size"] for layer in json.loads(self.manifest)["layers"]}

    @property
    def index(self) -> dict[str, object]:
        """Descriptor of the manifest for an OCI index."""
        media_type = json.loads(self.manifest)["mediaType"]
        return {"mediaType": media_type, "digest": sha256(self.manifest), "size": len(self.manifest)}


def stored_image(reference: str) -> StoredImage:
    """Read the documents of an image from the storage of buildah.

    Raises:
        LocalClusterError: The image does not exist, or its content does not match its digest.
    """
    hint = "Run `python -m local_cluster.images build` to build it."
    inspect = ("inspect", "--type", "image", "--format")
    documents = [
        buildah(*inspect, "{{.%s}}" % field, reference, next_step=hint).removesuffix("\n").encode()  # noqa: UP031
        for field in ("Manifest", "Config")
    ]
    image = StoredImage(*documents)
    if json.loads(image.manifest)["config"]["digest"] != sha256(image.config):
        raise LocalClusterError(
            f"The configuration of {reference} in the storage does not match its manifest. Build the image again."
        )
    return image


def write_archive(
    image: StoredImage, names: Sequence[str], without: Container[str], open_layer: OpenLayer, sink: IO[bytes]
) -> None:
    """Write an OCI archive.

    Args:
        image: Image to write.
        names: Names of the image in the archive.
        without: Digests of layers to omit.
        open_layer: Opens the uncompressed tar of a layer by its digest.
        sink: Destination of the archive.
    """
    manifests = [{**image.index, "annotations": {NAME_ANNOTATION: name}} for name in names]
    with tarfile.open(fileobj=sink, mode="w|", bufsize=_BLOCK) as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
        for document in (image.manifest, image.config):
            _add(tar, _blob(sha256(document)), document)
        for digest, size in image.layers.items():
            if digest not in without:
                entry = tarfile.TarInfo(_blob(digest))
                entry.size = size
                with open_layer(digest) as layer:
                    tar.addfile(entry, layer)


@contextmanager
def open_stored_layer(digest: str) -> Iterator[IO[bytes]]:
    """Open the tar of a layer in the storage of buildah as a stream.

    Raises:
        LocalClusterError: The layer is not in the storage.
    """
    layers = json.loads(run(["containers-storage", "layers", "--json"]).stdout)
    ids = [layer["id"] for layer in layers if layer.get("diff-digest") == digest]
    if not ids:
        raise LocalClusterError(f"buildah's storage has no layer {digest}. Build the image again.")
    command = ["containers-storage", "diff", "--uncompressed", ids[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout


def sha256(content: bytes) -> str:
    """Return a digest in the notation of OCI."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
