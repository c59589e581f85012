"""Removes the operator's finalizer from all runs, in a Job of the chart after the operator was uninstalled.

The operator adds a finalizer to every run with a valid spec, and only the operator removes it. If no operator is
running, such runs and their namespaces cannot be deleted. The files of the runs stay in S3.

A running operator would add the finalizer again, so the Job acquires the operator's Lease first. The Job does not
release the Lease, so that a standby operator that is shutting down does not take over. The Lease expires by itself.

python -m rlrun_operator.cluster.finalizer_removal --lease-namespace rlrun-system --lease-name rlrun-operator
    --bucket rlrun
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from rlrun.constants import FINALIZER
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj
from rlrun.storage.layout import RunLayout

from rlrun_operator.runtime.leader_election import DURATION_SECONDS, LeaderElection, LeaseLost

log = logging.getLogger(__name__)

IDENTITY = "finalizer-removal"
"""Holder identity in the Lease. Constant, so that a repeated Job need not wait for the previous Job's Lease."""
WAIT_SECONDS = 120.0
"""Maximum wait for the Lease in seconds. A Lease that the operator could not release expires after `leaseSeconds`."""
PASSES = 3
"""Maximum number of passes over all runs. A run that changes during a pass is retried in the next pass."""


class RemovalError(Exception):
    """Raised if runs may still have the operator's finalizer."""


async def remove_finalizers(
    cluster: AsyncKubeClient,
    lease: LeaderElection,
    bucket: str,
    prefix: str = "",
    namespaces: Sequence[str] = (),
    *,
    wait: float = WAIT_SECONDS,
) -> int:
    """Remove the operator's finalizer from all runs in the namespaces, or in all namespaces if none is given. Returns
    the number of changed runs.

    `bucket` and `prefix` are only used to log where the files are. Raises RemovalError, LeaseLost or ApiError.
    """
    try:
        await asyncio.wait_for(lease.acquire(), wait)
    except TimeoutError:
        raise RemovalError(
            f"No finalizer was removed: the operator's Lease could not be acquired within {wait:.0f} s, so an "
            f"operator may still be running. Stop it, then remove the finalizers as described in the chart's README."
        ) from None
    holding = asyncio.create_task(lease.hold())
    removing = asyncio.create_task(_remove_all(cluster, namespaces, bucket, prefix))
    try:
        await asyncio.wait({holding, removing}, return_when=asyncio.FIRST_COMPLETED)
        if not removing.done():
            holding.result()
        return removing.result()
    finally:
        holding.cancel()
        removing.cancel()


async def _remove_all(cluster: AsyncKubeClient, namespaces: Sequence[str], bucket: str, prefix: str) -> int:
    removed = 0
    for _ in range(PASSES):
        runs = await _runs_with_finalizer(cluster, namespaces)
        if not runs:
            return removed
        for run in runs:
            removed += await _remove(cluster, run, bucket, prefix)
    left = await _runs_with_finalizer(cluster, namespaces)
    if left:
        names = ", ".join(f"{run['metadata']['namespace']}/{run['metadata']['name']}" for run in left[:10])
        names += ", ..." if len(left) > 10 else ""
        count = "1 run" if len(left) == 1 else f"{len(left)} runs"
        raise RemovalError(
            f"The finalizer {FINALIZER} could not be removed from {count}, for the reasons above: {names}. Remove it "
            f"as described in the chart's README."
        )
    return removed


async def _runs_with_finalizer(cluster: AsyncKubeClient, namespaces: Sequence[str]) -> list[Obj]:
    places: list[str | None] = [*namespaces] or [None]
    try:
        runs = [run for namespace in places for run in await cluster.list(RLRUN, namespace)]
    except ApiError as error:
        if error.status == 404:
            return []  # The CRDs were deleted, and all runs with them.
        raise
    return [run for run in runs if FINALIZER in (run["metadata"].get("finalizers") or [])]


async def _remove(cluster: AsyncKubeClient, run: Obj, bucket: str, prefix: str) -> bool:
    metadata = run["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    others = [finalizer for finalizer in metadata["finalizers"] if finalizer != FINALIZER]
    change = {"finalizers": others, "resourceVersion": metadata["resourceVersion"]}
    try:
        await cluster.patch(RLRUN, namespace, name, {"metadata": change})
    except ApiError as error:
        # 404: the run was deleted; 409: the run has changed. The next pass retries.
        if error.status not in (404, 409):
            log.warning("The finalizer of run %s/%s was not removed: %s", namespace, name, error)
        return False
    root = RunLayout.of(bucket, prefix, namespace, metadata["uid"]).root
    log.info("Run %s/%s: finalizer removed; its files are kept at %s", namespace, name, root)
    return True


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options. Exits with code 2 if they are invalid."""
    parser = argparse.ArgumentParser("python -m rlrun_operator.cluster.finalizer_removal")
    parser.add_argument("--lease-namespace", required=True, help="namespace of the operator's Lease")
    parser.add_argument("--lease-name", required=True, help="name of the operator's Lease")
    parser.add_argument("--lease-seconds", type=float, default=DURATION_SECONDS, help="the operator's leaseSeconds")
    parser.add_argument("-n", "--namespace", action="append", default=[], help="only in this namespace (repeatable)")
    parser.add_argument("--bucket", required=True, help="bucket with the runs' files; used only in log messages")
    parser.add_argument(
        "--prefix", default="", help="prefix of the runs' files in the bucket; used only in log messages"
    )
    return parser.parse_args(given)


async def _run(options: argparse.Namespace) -> int:
    cluster = AsyncKubeClient(AsyncApiTransport(await load_configuration(os.environ.get("KUBECONFIG"))))
    place = (options.lease_namespace, options.lease_name)
    lease = LeaderElection(cluster, *place, IDENTITY, duration=options.lease_seconds)
    try:
        return await remove_finalizers(cluster, lease, options.bucket, options.prefix, options.namespace)
    finally:
        await cluster.close()


def main(given: Sequence[str] | None = None) -> int:
    """Run the command. Returns exit code 0 if no run has the finalizer, 1 if a run may still have it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        removed = asyncio.run(_run(arguments(given)))
    except (RemovalError, LeaseLost, ApiError) as error:
        log.error("%s", error)
        return 1
    log.info("Finalizers removed: %d. `rlrun gc` lists the files that no object refers to.", removed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
