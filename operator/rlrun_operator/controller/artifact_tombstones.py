"""Writes tombstones for checkpoints and adapters whose objects were deleted.

Only a deletion event from the API server proves that an object was deleted: an object missing from a list may have been
lost in a restore of etcd. No tombstone is written for a deletion while no operator is running, if S3 cannot be written
for ten minutes, or if too many tombstones are waiting. Garbage collection then reports the files and keeps them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rlrun.api.base.phases import ArtifactPhase
from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.garbage_collection.tombstones import artifact_tombstone
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import CachedObject, ObjectChange
from rlrun.kube.kinds import ARTIFACTS, RLRUN, ResourceKind
from rlrun.kube.objects import phase_of
from rlrun.protocol.problem import Problem
from rlrun.storage.errors import StoreError
from rlrun.storage.layout import S3Uri

from rlrun_operator.cluster.informers import CachedRun, Informers
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.platform import is_in_own_folder
from rlrun_operator.storage.artifact_store import ArtifactStore

log = logging.getLogger(__name__)

WAITING = 10_000
"""Maximum number of tombstones that wait to be written."""
TRIES = 20
PAUSE_SECONDS = 30.0


class ArtifactTombstones:
    """Writes tombstones. Not thread-safe: use it from one event loop only."""

    def __init__(
        self,
        artifacts: ArtifactStore,
        informers: Informers,
        variables: Callable[[], Awaitable[dict[str, str] | Problem]],
        settings: OperatorSettings,
        *,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        """`variables` returns the AWS_* variables of the operator's S3 client, or the reason why there are none."""
        self._artifacts = artifacts
        self._informers = informers
        self._variables = variables
        self._settings = settings
        self._pause = pause
        self._root = S3Uri(settings.s3.bucket, settings.s3.prefix.strip("/"))
        self._waiting: asyncio.Queue[S3Uri] = asyncio.Queue(WAITING)

    def on_change(self, kind: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        """Queue a tombstone if a user has deleted the object of an artifact whose run no longer exists or is being
        deleted. The informers call this method after each change.
        """
        cached = change.cached
        if kind not in ARTIFACTS or not change.is_deleted or change.is_own or change.is_missing:
            return
        uri = None if cached.data is None or self._is_of_existing_run(cached) else self._tombstone(cached)
        if uri is None:
            return
        try:
            self._waiting.put_nowait(uri)
        except asyncio.QueueFull:
            log.warning(
                "%d tombstones are waiting to be written to S3, so %s is not written. Garbage collection keeps the "
                "artifact's files",
                WAITING,
                uri,
            )

    async def write(self) -> None:
        """Write the queued tombstones until cancelled. Each is dropped after TRIES failed attempts."""
        while True:
            uri = await self._waiting.get()
            for tries in range(1, TRIES + 1):
                problem = await self._put(uri)
                if problem is None:
                    break
                log.warning("Could not write tombstone %s (attempt %d of %d): %s", uri, tries, TRIES, problem)
                if tries < TRIES:
                    await asyncio.sleep(self._pause)

    def _tombstone(self, cached: CachedObject) -> S3Uri | None:
        obj = cached.read()
        # Users can create these objects, even with the URI of other users' files. Retention deletes files itself.
        if not is_in_own_folder(obj, self._settings) or phase_of(obj) == ArtifactPhase.deleting.value:
            return None
        return artifact_tombstone(self._root, S3Uri.parse(str(obj["spec"]["uri"])))

    def _is_of_existing_run(self, cached: CachedObject) -> bool:
        """Return whether the run may exist and is not being deleted. The operator then recreates the object."""
        labels = dict(cached.labels)
        informer = self._informers.find(RLRUN, cached.namespace)
        if informer is None:
            return True
        run = informer.find(cached.namespace, labels.get(RUN_LABEL, ""))
        if not isinstance(run, CachedRun) or run.uid != labels.get(RUN_UID_LABEL):
            return False
        return not run.read_listed()["metadata"].get("deletionTimestamp")

    async def _put(self, uri: S3Uri) -> str | None:
        """Write one tombstone. Returns the error, or None."""
        try:
            variables = await self._variables()
            if isinstance(variables, Problem):
                return variables.message
            await self._artifacts.write_tombstone(variables, str(uri), b"{}")
        except (StoreError, ApiError) as error:
            return str(error)
        return None
