"""Policy files of one run in a shared pool. Their total size is bounded, because all runs use the same disk."""

from pathlib import Path

from rlrun.constants import CONFLICT, Reason
from rlrun.protocol.policy import NAME, PolicyRef
from rlrun.service.errors import ProblemError
from rlrun.storage.manifest import Manifest
from rlrun.storage.store import Store
from typing_extensions import override

from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.policy_files import PolicyFiles
from rlrun_adapter_sidecar.engine.trainer_fallback import TrainerFallback

GIB = 1024**3
MAX_POLICY_BYTES = 16 * GIB
"""Maximum size of a policy. An adapter of rank 512 for all linear layers of a model with 70B parameters takes 13 GB in
BF16. A larger policy could fill the disk that all runs share.
"""
MAX_RUN_BYTES = 64 * GIB
"""Maximum size of a run's policies on disk: four of the largest, or 68 policies of nearly 1 GiB."""


class RunPolicyFiles(PolicyFiles):
    """Manager of a run's folder, which holds at most MAX_RUN_BYTES, including downloads in progress."""

    def __init__(
        self, source: Store, folder: Path, deadline: float, metrics: SidecarMetrics, fallback: TrainerFallback
    ) -> None:
        super().__init__(source, folder, deadline, metrics, fallback)
        self._reserved: dict[str, int] = {}
        """Size in bytes of each policy that is being downloaded."""

    @override
    async def fetch(self, policy: PolicyRef, manifest: Manifest | None = None) -> Path:
        """Download a policy as PolicyFiles does. Also raises ProblemError if it is too large (see `check_size`)."""
        try:
            return await super().fetch(policy, manifest)
        finally:
            self._reserved.pop(policy.name, None)

    @override
    def check_size(self, name: str, manifest: Manifest) -> None:
        """Reserve space for a policy. Raises ProblemError `AdapterDownloadFailed`: 422 if the policy is larger than
        MAX_POLICY_BYTES, 409 if the run's policies would be larger than MAX_RUN_BYTES.
        """
        if manifest.size > MAX_POLICY_BYTES:
            message = (
                f"{name} is {manifest.size / GIB:.1f} GiB; a shared engine loads policies of at most "
                f"{MAX_POLICY_BYTES // GIB} GiB: reduce the rank of the run's adapter"
            )
            raise ProblemError.of(422, Reason.ADAPTER_DOWNLOAD_FAILED, message)
        others = {path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name)} - self._reserved.keys()
        used = sum(_size_of(self.folder / other) for other in others - {name})
        used += sum(size for other, size in self._reserved.items() if other != name)
        if used + manifest.size > MAX_RUN_BYTES:
            message = (
                f"the run's policies on this engine take {used / GIB:.1f} GiB, and {name} takes "
                f"{manifest.size / GIB:.1f} GiB, but the maximum is {MAX_RUN_BYTES // GIB} GiB; wait until the files "
                "of unloaded policies are deleted. If that does not suffice, reduce spec.maxOffPolicySteps or the rank "
                "of the run's adapter"
            )
            raise ProblemError.of(CONFLICT, Reason.ADAPTER_DOWNLOAD_FAILED, message)
        self._reserved[name] = manifest.size


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))
