"""Images of the product without a registry: built by buildah or Docker, loaded onto the node of the local cluster.

An image is tagged with a hash of its Dockerfile, locks, code and base, both in the store of the builder and on the
node. An image that is present under its hash is neither built nor loaded again, and no other record exists that could
become stale. Charts use the tag `local`, which points to the newest build.

    python -m local_cluster.images all                     # build what changed, import what is missing
    python -m local_cluster.images run trainer -- python   # a command inside an image, without a cluster
"""

from local_cluster.images.ensure import build_images, ensure_images, import_images

__all__ = ["build_images", "ensure_images", "import_images"]
