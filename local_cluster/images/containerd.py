"""Images from buildah's storage into the node's containerd, layers that are there already left out.

`ctr images import` does not miss a layer in an archive as long as containerd has it. So after a change of code the
archive is two documents and a few small layers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Container, Mapping, Sequence

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.progress import progress
from local_cluster.host.shell import run, tail
from local_cluster.images.catalog import LOCAL_TAG, ImageSpec
from local_cluster.images.oci_archive import StoredImage, open_stored_layer, stored_image, write_archive
from local_cluster.node.containers import ctr_command

_IMPORT_SECONDS = 1800.0
_CLUSTER_HINT = "Is the cluster up? `python -m local_cluster status`"


def image_digests() -> dict[str, str]:
    """Names of containerd's images, each with the digest of its manifest."""
    rows = run([*ctr_command(), "images", "list"], next_step=_CLUSTER_HINT).stdout.splitlines()[1:]
    cells = [row.split() for row in rows]
    return {row[0]: row[2] for row in cells if len(row) > 2}


def import_image(image: ImageSpec, key: str) -> None:
    """Copy one built image into containerd, named by its key and as `local`.

    Raises:
        LocalClusterError: buildah does not have it, or containerd does not take it.
    """
    names = (image.reference(key), image.reference(LOCAL_TAG))
    stored = stored_image(image.reference(key))
    known = known_layers(image_digests())
    new = sum(size for digest, size in stored.layers.items() if digest not in known)
    with progress.step(f"import {image.name}"):
        progress.say(f"      {new >> 20} MiB are new to the node")
        _stream(stored, names, known)


def forget_earlier(image: ImageSpec, key: str) -> None:
    """Remove the names of earlier builds; containerd then collects what only they needed."""
    keep = (image.reference(key), image.reference(LOCAL_TAG))
    earlier = [name for name in image_digests() if name.startswith(image.reference("")) and name not in keep]
    if earlier:
        run([*ctr_command(), "images", "remove", *earlier], next_step=_CLUSTER_HINT)


def known_layers(images: Mapping[str, str]) -> set[str]:
    """Digests of the layers that containerd holds for the product's images."""
    layers: set[str] = set()
    for digest in {digest for name, digest in images.items() if "/rlrun-" in name}:
        manifest = json.loads(run([*ctr_command(), "content", "get", digest], next_step=_CLUSTER_HINT).stdout)
        layers |= {layer["digest"] for layer in manifest.get("layers", [])}
    return layers


def _stream(stored: StoredImage, names: Sequence[str], without: Container[str]) -> None:
    """Feed the archive to `ctr images import`, which also unpacks it."""
    command = [*ctr_command(), "images", "import", "-"]
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as importer,
    ):
        assert importer.stdin is not None
        try:
            write_archive(stored, names, without, open_stored_layer, importer.stdin)
            importer.stdin.close()
        except BrokenPipeError:
            pass  # the importer ended early; its own words below say why
        except OSError as error:
            importer.kill()
            raise LocalClusterError(f"Reading {names[0]} from buildah's storage failed: {error}") from error
        except BaseException:
            importer.kill()
            raise
        status = importer.wait(timeout=_IMPORT_SECONDS)
        if status != 0:
            output.seek(0)
            raise LocalClusterError(f"containerd did not take {names[0]}:\n{tail(output.read())}\n{_CLUSTER_HINT}")
