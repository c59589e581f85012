"""Reads the list of saved states that the trainer stores in S3 for a run with `driver: Client`."""

from datetime import UTC, datetime

from rlrun.api.artifact import NEVER
from rlrun.api.base.received import InputInvalid, limits_of, parse
from rlrun.protocol.client_run import SavedState, SavedStates
from rlrun.storage.errors import Corrupt, NotFound
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.store import Store

from rlrun_server.rest.base.stored_files import PlatformStorage, StoredFiles
from rlrun_server.rest.objects.summaries import ArtifactSummary

THREADS = 2
GONE_PHASES = ("Failed", "Deleting")
"""Phases in which an artifact cannot be used."""


def with_expiry(state: SavedState, artifact: ArtifactSummary | None) -> SavedState:
    """Return the state with its artifact's expiry, which users may have changed. `artifact` is None if the operator
    has not created the object yet; the state's own expiry then applies.
    """
    if artifact is None or artifact.expires_at is None:
        return state
    expires_at = None if artifact.expires_at >= NEVER else artifact.expires_at
    return state.model_copy(update={"expires_at": expires_at})


def is_deleted(state: SavedState, artifact: ArtifactSummary | None) -> bool:
    """Return whether the state has expired, or its artifact is failed or being deleted. Its files may still exist."""
    expires_at = with_expiry(state, artifact).expires_at
    has_expired = expires_at is not None and expires_at <= datetime.now(UTC)
    return has_expired or (artifact is not None and artifact.phase in GONE_PHASES)


class SavedStateReader:
    """Reader for saved states. Methods raise RestError if S3 fails. `caller` is the tenant whose limit on concurrent
    reads applies.
    """

    def __init__(self, storage: PlatformStorage) -> None:
        self._files = StoredFiles(storage, "saved-states", THREADS)

    def layout(self, namespace: str, uid: str) -> RunLayout:
        """Return the layout of a run's files. Raises RestError if the namespace has the name of a platform folder."""
        return self._files.layout(namespace, uid)

    async def read(self, caller: str, layout: RunLayout) -> SavedStates:
        """Return the saved states of a run, which are empty if the trainer has stored none."""
        return await self._files.run(caller, "saved states", _read, self._files.store, layout.saved_states)

    async def is_complete(self, caller: str, artifact: S3Uri) -> bool:
        """Return whether the artifact in this folder is complete. It is not if the upload has not finished, or if the
        artifact was deleted.
        """
        return await self._files.run(caller, "an artifact", _has_manifest, self._files.store, artifact)

    def close(self) -> None:
        """Stop the threads."""
        self._files.close()


def _read(store: Store, uri: S3Uri) -> SavedStates:
    try:
        return parse(SavedStates, store.get_bytes(uri, limits_of(SavedStates).size), str(uri))
    except NotFound:
        return SavedStates()
    except InputInvalid as error:
        message = str(error)
    raise Corrupt(message)


def _has_manifest(store: Store, folder: S3Uri) -> bool:
    try:
        store.get_range(folder / MANIFEST, 0, 1)
    except NotFound:
        return False
    return True
