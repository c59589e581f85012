"""Daemons of the control plane: etcd, kube-apiserver, controller manager and scheduler. They need no node and no root.

The full cluster and the control plane for tests use the same daemons, with different ports and flags.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster.control_plane import audit
from local_cluster.control_plane.pki import ADMINISTRATORS, CertificateAuthority, KeyPair, write_kubeconfig
from local_cluster.host import network
from local_cluster.host.daemons import Daemon
from local_cluster.host.network import Ports
from local_cluster.host.paths import Paths
from local_cluster.tools.binaries import program

LOCALHOST = "127.0.0.1"
CONTEXT = "rlrun-local"


@dataclass(frozen=True)
class ControlPlaneDaemons:
    """Builder of the daemons of one control plane.

    Attributes:
        paths: Directories with the binaries.
        state: Directory of this control plane: keys, data of etcd, kubeconfigs.
        ports: Ports of the daemons.
        address: Address that the API server advertises.
    """

    paths: Paths
    state: Path
    ports: Ports
    address: str

    @property
    def authority(self) -> CertificateAuthority:
        """Certificate authority, created on first use."""
        return CertificateAuthority(self.state / "pki")

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of the administrator."""
        return self.state / "kubeconfig"

    @property
    def server(self) -> str:
        """URL of the API server on this machine."""
        return f"https://{LOCALHOST}:{self.ports.api}"

    def write_kubeconfig(self, name: str, user: str, group: str = "") -> Path:
        """Write a kubeconfig with a client certificate for a daemon."""
        file = self.state / "config" / f"{name}.kubeconfig"
        pair = self.authority.issue(name, user, group)
        write_kubeconfig(file, self.server, self.authority, pair, CONTEXT)
        return file

    def prepare(self) -> None:
        """Write the keys and the kubeconfig of the administrator."""
        pair = self.authority.issue("admin", "rlrun-local-admin", ADMINISTRATORS)
        write_kubeconfig(self.kubeconfig, self.server, self.authority, pair, CONTEXT)

    def etcd(self) -> Daemon:
        """Return etcd. It does not sync to disk, because a cluster is recreated after a power failure."""
        server = self.authority.issue("etcd", "etcd", addresses=["localhost", LOCALHOST])
        client = self._etcd_client()
        url = f"https://{LOCALHOST}:{self.ports.etcd}"
        peer = f"https://{LOCALHOST}:{self.ports.etcd_peer}"
        ca = self.authority.pair.certificate
        argv = (
            str(program("etcd", self.paths)),
            "--name=rlrun-local",
            f"--data-dir={self.state / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=rlrun-local={peer}",
            f"--cert-file={server.certificate}",
            f"--key-file={server.key}",
            f"--trusted-ca-file={ca}",
            "--client-cert-auth=true",
            f"--peer-cert-file={server.certificate}",
            f"--peer-key-file={server.key}",
            f"--peer-trusted-ca-file={ca}",
            "--peer-client-cert-auth=true",
            "--unsafe-no-fsync=true",
            "--auto-compaction-mode=periodic",
            "--auto-compaction-retention=10m",
            "--quota-backend-bytes=4294967296",
            "--log-level=warn",
        )
        return Daemon("etcd", argv, answers(f"{url}/health", ca, client))

    def api_server(self, *extra: str) -> Daemon:
        """Return the API server. `extra` are additional flags."""
        authority = self.authority
        ca = authority.pair.certificate
        serving = authority.issue(
            "kube-apiserver",
            "kube-apiserver",
            addresses=[
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                f"kubernetes.default.svc.{network.CLUSTER_DOMAIN}",
                "localhost",
                LOCALHOST,
                network.API_SERVICE_ADDRESS,
                self.address,
            ],
        )
        kubelet_client = authority.issue("kube-apiserver-kubelet-client", "kube-apiserver", ADMINISTRATORS)
        accounts = self._service_account_key()
        etcd = self._etcd_client()
        argv = (
            str(program("kube-apiserver", self.paths)),
            f"--advertise-address={self.address}",
            f"--secure-port={self.ports.api}",
            f"--etcd-servers=https://{LOCALHOST}:{self.ports.etcd}",
            f"--etcd-cafile={ca}",
            f"--etcd-certfile={etcd.certificate}",
            f"--etcd-keyfile={etcd.key}",
            f"--client-ca-file={ca}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--kubelet-certificate-authority={ca}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            # The node's name does not resolve.
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer=https://kubernetes.default.svc.{network.CLUSTER_DOMAIN}",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            f"--service-cluster-ip-range={network.SERVICE_RANGE}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            "--profiling=false",
            *extra,
        )
        return Daemon("kube-apiserver", argv, answers(f"{self.server}/readyz", ca, etcd))

    def api_server_with_nodes(self) -> Daemon:
        """Return the API server for a cluster with nodes, with an audit log. A kubelet may change only its own node."""
        return self.api_server("--enable-admission-plugins=NodeRestriction", *audit.api_server_flags(self.state))

    def controller_manager(self, controllers: Sequence[str] = ("*",), extra: Sequence[str] = ()) -> Daemon:
        """Return the controller manager.

        `controllers` defaults to all controllers that Kubernetes enables by default. `extra` are additional flags.
        """
        authority = self.authority
        ca = authority.pair
        kubeconfig = self.write_kubeconfig("kube-controller-manager", "system:kube-controller-manager")
        argv = (
            str(program("kube-controller-manager", self.paths)),
            f"--kubeconfig={kubeconfig}",
            f"--controllers={','.join(controllers)}",
            f"--bind-address={LOCALHOST}",
            f"--secure-port={self.ports.controller_manager}",
            f"--service-account-private-key-file={self._service_account_key().key}",
            f"--root-ca-file={ca.certificate}",
            f"--cluster-signing-cert-file={ca.certificate}",
            f"--cluster-signing-key-file={ca.key}",
            f"--cluster-cidr={network.POD_RANGE}",
            f"--service-cluster-ip-range={network.SERVICE_RANGE}",
            "--allocate-node-cidrs=true",
            # The manager's own user has almost no permissions, so each controller needs its service account.
            "--use-service-account-credentials=true",
            # There is only one instance, and waiting for the lease of a killed predecessor would take 15 seconds.
            "--leader-elect=false",
            "--profiling=false",
            *extra,
        )
        url = f"https://{LOCALHOST}:{self.ports.controller_manager}/healthz"
        return Daemon("kube-controller-manager", argv, answers(url))

    def scheduler(self, extra: Sequence[str] = ()) -> Daemon:
        """Return the scheduler. `extra` are additional flags."""
        kubeconfig = self.write_kubeconfig("kube-scheduler", "system:kube-scheduler")
        argv = (
            str(program("kube-scheduler", self.paths)),
            f"--kubeconfig={kubeconfig}",
            f"--bind-address={LOCALHOST}",
            f"--secure-port={self.ports.scheduler}",
            "--leader-elect=false",
            "--profiling=false",
            *extra,
        )
        return Daemon("kube-scheduler", argv, answers(f"https://{LOCALHOST}:{self.ports.scheduler}/healthz"))

    def _etcd_client(self) -> KeyPair:
        return self.authority.issue("etcd-client", "kube-apiserver-etcd-client")

    def _service_account_key(self) -> KeyPair:
        return self.authority.issue("service-accounts", "service-accounts")


def answers(url: str, ca: Path | None = None, client: KeyPair | None = None) -> Callable[[], bool]:
    """Return a function that checks whether a local health URL returns 200.

    Without `ca` the certificate is not verified, because the controller manager and the scheduler use self-signed ones.
    """

    def check() -> bool:
        context = ssl.create_default_context(cafile=str(ca) if ca else None)
        if ca is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        # No proxy, because these addresses belong to this machine.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(url, timeout=3) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError, ValueError):
            return False

    return check
