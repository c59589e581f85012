"""Kueue for a test control plane, as a process. It manages Jobs, Deployments and pods.

Its CRDs and webhooks come from the sources of the Go module from which it is built.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import yaml

from local_cluster.control_plane.control_plane_daemons import LOCALHOST, answers
from local_cluster.control_plane.pki import CertificateAuthority
from local_cluster.control_plane.without_nodes import ControlPlane
from local_cluster.host.atomic_files import write
from local_cluster.host.daemons import Daemon, Supervisor
from local_cluster.host.network import free_ports
from local_cluster.host.paths import Paths, paths
from local_cluster.tools.binaries import ensure_builds, module_folder, program

MODULE = "sigs.k8s.io/kueue"
NAMESPACE = "kueue-system"
_METRICS_CERTIFICATES = "/etc/kueue/metrics/certs"
"""Fixed folder in which Kueue expects a certificate, even if it serves no metrics."""


FRAMEWORKS = {"batch/job": "batch-v1-job", "deployment": "apps-v1-deployment", "pod": "-v1-pod"}
"""Kinds that Kueue manages, and the last parts of the paths of their webhooks."""


class Kueue:
    """Kueue for one control plane. Needs root, or a machine that allows user namespaces."""

    def __init__(self, control_plane: ControlPlane, directories: Paths | None = None) -> None:
        """Configure Kueue without starting it.

        Args:
            control_plane: A running control plane with the CRDs of `crds`.
            directories: Directories with the cached binaries.
        """
        self._kubeconfig = control_plane.kubeconfig
        self._state = control_plane.state / "kueue"
        self._paths = directories or paths()
        self._ports = free_ports()
        self._authority = CertificateAuthority(self._state / "pki")
        self._supervisor = Supervisor(self._state / "run", self._state / "logs", die_with_parent=True)

    @property
    def log(self) -> Path:
        """Path of Kueue's log."""
        return self._supervisor.log("kueue")

    def start(self) -> Kueue:
        """Build Kueue if necessary, start it, and wait until it is ready."""
        ensure_builds(["kueue"], self._paths)
        certificates = self._certificates()
        file = self._state / "config.yaml"
        configuration = yaml.safe_dump(self._configuration(certificates))
        write(file, configuration)
        # Kueue's folder of metrics certificates is fixed and below /etc, so the process gets its own /etc.
        own_etc = (
            f"mount -t tmpfs none /etc && mkdir -p {_METRICS_CERTIFICATES} && cp {certificates}/tls.* "
            f"{_METRICS_CERTIFICATES}/ && exec {program('kueue', self._paths)} --config={file} --zap-log-level=2"
        )
        argv = ("unshare", "--mount", "--user", "--map-root-user", "env", f"KUBECONFIG={self._kubeconfig}", "sh", "-c")
        ready = answers(f"http://{LOCALHOST}:{self._ports.etcd}/readyz")
        self._supervisor.start(Daemon("kueue", (*argv, own_etc), ready, configuration=configuration))
        return self

    def webhooks(self) -> list[dict[str, Any]]:
        """Return the configurations of Kueue's webhooks, for Kueue's own kinds and for the kinds that it manages."""
        file = module_folder("kueue", MODULE, self._paths) / "config" / "components" / "webhook" / "manifests.yaml"
        found: list[dict[str, Any]] = [part for part in yaml.safe_load_all(file.read_text()) if part]
        bundle = base64.b64encode(self._authority.pair.certificate.read_bytes()).decode()
        for configuration in found:
            served = [w for w in configuration["webhooks"] if _is_served(w["clientConfig"]["service"]["path"])]
            for webhook in served:
                path = webhook["clientConfig"]["service"]["path"]
                url = f"https://{LOCALHOST}:{self._ports.api}{path}"
                webhook["clientConfig"] = {"url": url, "caBundle": bundle}
            configuration["webhooks"] = served
        return found

    def stop(self) -> None:
        """Stop the process."""
        self._supervisor.stop("kueue", grace=0.0)

    def _certificates(self) -> Path:
        folder = self._state / "serving"
        folder.mkdir(parents=True, exist_ok=True)
        pair = self._authority.issue("kueue", "kueue", addresses=["localhost", LOCALHOST])
        (folder / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (folder / "tls.key").write_bytes(pair.key.read_bytes())
        return folder

    def _configuration(self, certificates: Path) -> dict[str, Any]:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"{LOCALHOST}:{self._ports.etcd}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": LOCALHOST, "port": self._ports.api, "certDir": str(certificates)},
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "featureGates": {"VisibilityOnDemand": False},
            "integrations": {
                "frameworks": list(FRAMEWORKS),
                "externalFrameworks": ["RLRun.v1alpha1.rlrun.dev"],
            },
        }


def crds(directories: Paths | None = None) -> list[dict[str, Any]]:
    """Return Kueue's CustomResourceDefinitions, each with the storage version only, because no webhook converts
    versions.
    """
    folder = module_folder("kueue", MODULE, directories or paths()) / "config" / "components" / "crd" / "bases"
    found: list[dict[str, Any]] = [yaml.safe_load(file.read_text()) for file in sorted(folder.glob("*.yaml"))]
    for definition in found:
        versions = definition["spec"]["versions"]
        stored = next(version for version in versions if version["storage"])
        definition["spec"]["versions"] = [version for version in versions if version is stored]
    return found


def _is_served(path: str) -> bool:
    return "-kueue-x-k8s-io-" in path or path.endswith(tuple(FRAMEWORKS.values()))
