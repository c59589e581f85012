"""The product's images on a machine without a registry: built by buildah, moved into the local cluster's containerd.

Names are content: an image is tagged with a hash of its Dockerfile, its locks, its code and the base it stands on, in
the builder's storage and in the node's. What is present under its hash is neither built nor imported again; there is
no other record that could go stale. Charts use the tag `local`, which follows.

    python -m local_cluster.images all                     # build what changed, import what is missing
    python -m local_cluster.images run trainer -- python   # a command inside an image, without a cluster
"""

from local_cluster.images.ensure import build_images, ensure_images, import_images

__all__ = ["build_images", "ensure_images", "import_images"]
