"""Records the packages of the run's environments when all environments are ready for the first time.

Recording needs no request to S3, because the packages were read when the environments got them. Only a process that
starts after the environments, before the operator has seen the previous process's report, reads a package again.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from rlrun.constants import ExitCode
from rlrun.service.errors import FatalError
from rlrun.storage.store import StoreError

from rlrun_orchestrator.inference.gateway.environment_packages import PackageMissing, PackageReader
from rlrun_orchestrator.inference.gateway.package_pins import PackageChanged, PackageRef
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage.startup import StartupTimeouts

log = logging.getLogger(__name__)


async def record_packages(
    packages: PackageReader,
    installed: Mapping[PackageRef, Sequence[str | None]],
    conditions: StatusConditions,
    timeouts: StartupTimeouts,
) -> None:
    """Record the packages of the environments, which must be ready. Raises FatalError.

    `installed` has, for each package, one entry per pod: the version that the pod reports, or None.
    """
    try:
        for ref in packages.pins.confirm({ref: len(versions) for ref, versions in installed.items()}):
            versions = sorted({version for version in installed[ref] if version})
            if len(versions) > 1:
                raise PackageChanged(
                    f"the environments with package {ref.id} report different versions, {', '.join(versions)}; start a "
                    "new run"
                )
            if ref.version or versions:
                await _read(packages, ref, versions[0] if versions else None, conditions, timeouts)
            else:
                log.warning("environment package %s is not recorded: its environment reports no version", ref.id)
    except PackageChanged as change:
        raise FatalError(change.problem, ExitCode.CONFIGURATION) from change


async def _read(
    packages: PackageReader,
    ref: PackageRef,
    version: str | None,
    conditions: StatusConditions,
    timeouts: StartupTimeouts,
) -> None:
    start = time.monotonic()
    while True:
        try:
            await packages.read_installed(ref, version)
        except PackageMissing as error:
            log.warning("environment package %s is not recorded: %s", ref.id, error)
        except StoreError as error:
            conditions.set_waiting("s3", error.problem)
            if time.monotonic() - start >= timeouts.component:
                raise FatalError(error.problem, ExitCode.RESTART) from error
            await asyncio.sleep(timeouts.poll_interval)
            continue
        conditions.set_waiting("s3", None)
        return
