"""Import of images from buildah's storage into containerd, without layers that containerd already has.

`ctr images import` accepts an archive that lacks layers already in containerd. After a code change, the archive
therefore consists of the manifest, the configuration and a few small layers.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Container, Mapping, Sequence

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.progress import progress
from local_cluster.host.shell import run, tail
from local_cluster.images.catalog import LOCAL_TAG, ImageSpec, earlier_references
from local_cluster.images.oci_archive import StoredImage, open_stored_layer, stored_image, write_archive
from local_cluster.node.containers import ctr_command

_IMPORT_SECONDS = 1800.0
_CLUSTER_HINT = "Check that the cluster is up: `python -m local_cluster status`."


def image_digests(ctr: Sequence[str]) -> dict[str, str]:
    """Return the manifest digests of containerd's images by name. `ctr` is the argv prefix of its client."""
    rows = run([*ctr, "images", "list"], next_step=_CLUSTER_HINT).stdout.splitlines()[1:]
    cells = [row.split() for row in rows]
    return {row[0]: row[2] for row in cells if len(row) > 2}


def forget_earlier(ctr: Sequence[str], image: ImageSpec, key: str) -> None:
    """Remove the names of earlier builds, so that containerd deletes layers that only they used."""
    digests = image_digests(ctr)
    earlier = earlier_references(image, key, digests)
    # The kubelet's plugin and `kind load` add names that are digests, each of which keeps the layers.
    unused = {digests[name] for name in earlier} - {digests.get(image.reference(key))}
    names = [name for name, digest in digests.items() if name in earlier or digest in unused]
    if names:
        run([*ctr, "images", "remove", *names], next_step=_CLUSTER_HINT)


def import_step(image: ImageSpec) -> str:
    """Return the name of the step that imports an image, for the log and estimates."""
    return f"import {image.name}"


def import_image(image: ImageSpec, key: str) -> None:
    """Copy a built image into containerd, with its key and `local` as tags.

    Raises:
        LocalClusterError: buildah does not have the image, or containerd rejects it.
    """
    names = (image.reference(key), image.reference(LOCAL_TAG))
    stored = stored_image(image.reference(key))
    known = known_layers(image_digests(ctr_command()))
    new = sum(size for digest, size in stored.layers.items() if digest not in known)
    with progress.step(import_step(image)):
        progress.say(f"      {new >> 20} MiB to import")
        _stream(stored, names, known)


def known_layers(images: Mapping[str, str]) -> set[str]:
    """Return the digests of the layers of the product's images in containerd."""
    layers: set[str] = set()
    for digest in {digest for name, digest in images.items() if "/rlrun-" in name}:
        manifest = json.loads(run([*ctr_command(), "content", "get", digest], next_step=_CLUSTER_HINT).stdout)
        layers |= {layer["digest"] for layer in manifest.get("layers", [])}
    return layers


def _stream(stored: StoredImage, names: Sequence[str], without: Container[str]) -> None:
    """Pipe the archive to `ctr images import`, which also unpacks it."""
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
            pass  # The importer exited early; its output is reported below.
        except OSError as error:
            importer.kill()
            raise LocalClusterError(
                f"Reading {names[0]} from buildah's storage failed: {error}. Build the image again."
            ) from error
        except BaseException:
            importer.kill()
            raise
        status = importer.wait(timeout=_IMPORT_SECONDS)
        if status != 0:
            output.seek(0)
            raise LocalClusterError(f"containerd rejected {names[0]}:\n{tail(output.read())}\n{_CLUSTER_HINT}")
