"""A real single-node Kubernetes on this machine, made from packages: no registry, no Docker needed.

`python -m local_cluster --help` lists the commands. From Python:

    from local_cluster.provider import provider          # up(), down(), status(), import_images(), kubeconfig
    from local_cluster.control_plane import ControlPlane  # etcd and kube-apiserver alone
    from local_cluster.node import ctr_command            # argv prefix of ctr
"""
