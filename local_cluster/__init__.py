"""Real single-node Kubernetes on this machine, made from packages: no registry, no Docker needed.

`python -m local_cluster --help` lists the commands. From Python:

    from local_cluster.providers.selection import provider                # up(), down(), status(), import_images()
    from local_cluster.control_plane.without_nodes import ControlPlane  # etcd and kube-apiserver alone
    from local_cluster.node.containers import ctr_command                 # argv prefix of ctr

Its folders are layers, each resting on those before it: `host` (processes, files, directories of this machine),
`tools` (programs from packages and from source), `control_plane`, `node`, `addons` (DNS, object store), `images`,
`providers`. `make lint` checks that order.
"""
