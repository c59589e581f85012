"""Control plane without nodes, for tests of the API server. Starts in seconds and needs no root.

    with ControlPlane() as control_plane:
        use(control_plane.kubeconfig)

Each control plane has its own ports and directory, so several can run next to each other and to the full cluster. By
default it runs only etcd and kube-apiserver. Pass `controllers=GARBAGE_COLLECTION` to remove dependents of deleted
owners. Pass `controllers=ALL_CONTROLLERS, scheduled=True` to run every controller and the scheduler, and add nodes with
`Kwok`.
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
from local_cluster.tools.binaries import CLUSTER_BUILDS, ensure_builds

GARBAGE_COLLECTION = ("garbage-collector-controller", "namespace-controller")
ALL_CONTROLLERS = ("*",)
_ORDER = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")


class ControlPlane:
    """Real API server on a real etcd.

    Attributes:
        state: Directory of this control plane.
        kubeconfig: kubeconfig of the administrator, valid after `start`.
    """

    def __init__(
        self,
        state: Path | None = None,
        *,
        controllers: Sequence[str] = (),
        api_server_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = (),
        scheduled: bool = False,
        scheduler_flags: Sequence[str] = (),
        directories: Paths | None = None,
    ) -> None:
        """Configure a control plane without starting it.

        Args:
            state: Directory of a control plane that outlives this process and that other processes find by its path.
                If None, a temporary directory is used, and the daemons are killed when the thread that started them
                ends.
            controllers: Controllers of the controller manager to run. None of them by default.
            api_server_flags: Additional flags of kube-apiserver.
            controller_manager_flags: Additional flags of the controller manager.
            scheduled: Run the scheduler.
            scheduler_flags: Additional flags of the scheduler.
            directories: Directories with the cached binaries.
        """
        self._temporary = state is None
        self.state = state or Path(tempfile.mkdtemp(prefix="rlrun-apiserver-"))
        self._controllers = tuple(controllers)
        self._flags = tuple(api_server_flags)
        self._manager_flags = tuple(controller_manager_flags)
        self._scheduled = scheduled
        self._scheduler_flags = tuple(scheduler_flags)
        self._paths = directories or paths()
        self._supervisor = Supervisor(self.state / "run", self.state / "logs", die_with_parent=self._temporary)

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of the administrator."""
        return self.state / "kubeconfig"

    @property
    def logs(self) -> Path:
        """Directory of the logs."""
        return self.state / "logs"

    def start(self) -> ControlPlane:
        """Start the daemons that are not running and wait until the API server is ready."""
        ensure_builds(CLUSTER_BUILDS, self._paths)
        daemons = ControlPlaneDaemons(self._paths, self.state, self._ports(), LOCALHOST)
        daemons.prepare()
        self._supervisor.start(daemons.etcd())
        flags = [
            f"--bind-address={LOCALHOST}",
            # The endpoints of the `kubernetes` Service must not be loopback addresses, but the server has no others.
            "--endpoint-reconciler-type=none",
            # This admission plugin waits for the default account, which no controller creates here.
            "--disable-admission-plugins=ServiceAccount",
        ]
        self._supervisor.start(daemons.api_server(*flags, *self._flags))
        if self._controllers:
            self._supervisor.start(daemons.controller_manager(self._controllers, self._manager_flags))
        if self._scheduled:
            self._supervisor.start(daemons.scheduler(self._scheduler_flags))
        return self

    def stop(self) -> None:
        """Stop the daemons and remove the directory."""
        for name in _ORDER:
            # No grace period, because the API server would wait half a minute for its watches, and no data is kept.
            self._supervisor.stop(name, grace=0.0)
        shutil.rmtree(self.state, ignore_errors=True)

    def running(self) -> dict[str, int]:
        """Return the running daemons with their process ids."""
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
        """Return the ports of this state directory.

        Running daemons keep their ports, so that `start` can be called again. Otherwise new free ports are chosen.
        """
        file = self.state / "ports.json"
        if self._supervisor.running() and file.exists():
            return Ports(**json.loads(file.read_text()))
        ports = free_ports()
        self.state.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(vars(ports)))
        return ports
