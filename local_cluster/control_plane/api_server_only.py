"""etcd and kube-apiserver alone: what tests of the API server need, in seconds and without root.

    with ControlPlane() as control_plane:
        use(control_plane.kubeconfig)

Each one has its own ports and directory, so several can run beside each other and beside the full cluster. Nothing
schedules or runs pods. Pass `controllers=GARBAGE_COLLECTION` to have owners' children removed.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from local_cluster.control_plane.control_plane_daemons import LOCALHOST, ControlPlaneDaemons
from local_cluster.host.daemons import Supervisor
from local_cluster.host.network import Ports, free_ports
from local_cluster.host.paths import Paths, paths
from local_cluster.tools.binaries import CONTROL_PLANE_BUILDS, ensure_builds

GARBAGE_COLLECTION = ("garbage-collector-controller", "namespace-controller")
_ORDER = ("kube-controller-manager", "kube-apiserver", "etcd")


class ControlPlane:
    """A real API server over a real etcd.

    Attributes:
        state: Its directory.
        kubeconfig: The administrator's kubeconfig, valid once it is started.
    """

    def __init__(
        self,
        state: Path | None = None,
        *,
        controllers: Sequence[str] = (),
        api_server_flags: Sequence[str] = (),
        directories: Paths | None = None,
    ) -> None:
        """Describe a control plane; nothing runs yet.

        Args:
            state: Where to keep it, so that another process can find it by the same path and it outlives this one.
                Without it, a temporary directory is used and the daemons die with the thread that started them.
            controllers: Names of the controller manager's controllers to run; none by default.
            api_server_flags: Further flags of kube-apiserver.
            directories: Where binaries are cached.
        """
        self._temporary = state is None
        self.state = state or Path(tempfile.mkdtemp(prefix="rlrun-apiserver-"))
        self._controllers = tuple(controllers)
        self._flags = tuple(api_server_flags)
        self._paths = directories or paths()
        self._supervisor = Supervisor(self.state / "run", self.state / "logs", die_with_parent=self._temporary)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def logs(self) -> Path:
        """Directory of the daemons' logs."""
        return self.state / "logs"

    def start(self) -> ControlPlane:
        """Start what isn't running and wait until the API server is ready."""
        ensure_builds(CONTROL_PLANE_BUILDS, self._paths)
        masters = ControlPlaneDaemons(self._paths, self.state, self._ports(), LOCALHOST)
        masters.prepare()
        self._supervisor.start(masters.etcd())
        flags = [
            f"--bind-address={LOCALHOST}",
            # Only a loopback address to offer, which the endpoints of the `kubernetes` Service may not hold.
            "--endpoint-reconciler-type=none",
            # No controller makes the default account that this admission plugin waits for.
            "--disable-admission-plugins=ServiceAccount",
        ]
        self._supervisor.start(masters.api_server(*flags, *self._flags))
        if self._controllers:
            self._supervisor.start(masters.controller_manager(self._controllers))
        return self

    def stop(self) -> None:
        """End the daemons and remove the directory."""
        for name in _ORDER:
            # Nothing here is worth a graceful end: the API server alone would take half a minute for its watches.
            self._supervisor.stop(name, grace=0.0)
        shutil.rmtree(self.state, ignore_errors=True)

    def running(self) -> dict[str, int]:
        """Daemons that run, with their process ids."""
        return self._supervisor.running()

    def __enter__(self) -> ControlPlane:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ports(self) -> Ports:
        """The ports of this state directory: picked once, then kept, so that `start` can be repeated."""
        file = self.state / "ports.json"
        if self._supervisor.running() and file.exists():
            return Ports(**json.loads(file.read_text()))
        ports = free_ports()
        self.state.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(vars(ports)))
        return ports
