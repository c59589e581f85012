"""Object in S3 with the names that a client's program gave the run's checkpoints and adapters."""

import asyncio

from rlrun.api.base.received import InputInvalid, limits_of, parse
from rlrun.protocol.client_run import SavedState, SavedStates, SaveKind
from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Corrupt, NotFound, Store


class SavedStatesObject:
    """Object with the names of one run's saved states. Only the run's session writes it."""

    def __init__(self, store: Store, layout: RunLayout) -> None:
        self._store = store
        self._uri = layout.saved_states
        self._states = SavedStates()

    async def read(self) -> None:
        """Read the names from S3. Raises StoreError."""
        try:
            data = await asyncio.to_thread(self._store.get_bytes, self._uri, limits_of(SavedStates).size)
            self._states = parse(SavedStates, data, str(self._uri))
        except NotFound:
            self._states = SavedStates()
        except InputInvalid as error:
            raise Corrupt(
                f"{error} Delete the object; the names of the run's saved states cannot be recovered"
            ) from error

    def find(self, kind: SaveKind, name: str) -> SavedState | None:
        """Return the saved state with this name, or None."""
        return self._states.of(kind).get(name)

    def __len__(self) -> int:
        return len(self._states.weights) + len(self._states.sampler_weights)

    @property
    def newest(self) -> tuple[str, SavedState] | None:
        """Newest named checkpoint, or None if there is none."""
        return max(self._states.weights.items(), key=lambda item: item[1].step, default=None)

    def record(self, kind: SaveKind, name: str, state: SavedState) -> None:
        """Add or replace a name, and write the object to S3. Must be called in a thread, one call at a
        time. Raises StoreError.
        """
        changed = self._states.model_copy(update={kind.value: self._states.of(kind) | {name: state}})
        self._store.put_bytes(self._uri, changed.model_dump_json(by_alias=True, exclude_none=True).encode())
        self._states = changed
