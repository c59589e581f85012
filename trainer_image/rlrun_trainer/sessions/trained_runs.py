"""Runs that the trainer of a shared pool trains, as listed in the operator's current `TrainerOrder`, and the data that
each run's session needs from it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakValueDictionary

from rlrun.constants import OUT_OF_MEMORY, UNPROCESSABLE, Reason
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.shared_pool import TrainedRun, TrainerOrder
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.access import UNAUTHORIZED
from rlrun.service.errors import ProblemError
from rlrun.service.pool_orders import OrderInForce
from rlrun.storage.store import Store, StoreError

from rlrun_trainer.artifacts.s3_errors import refused_opening
from rlrun_trainer.runtime.run_deaths import RunDeaths

NOT_IN_POOL = (
    "The trainer of this shared pool has no run with this token in its list. The operator sends the list every few "
    "seconds: retry. If this persists, check that the run's status names the pool"
)
"""Message for requests without the token of a run in the `TrainerOrder`."""

MAX_OUT_OF_MEMORY = 3
"""Number of consecutive out-of-memory requests at which a run is evicted. A single one does not count as proof,
because another run may soon free memory, as at the end of a step.
"""
OWN_TRAINER = "The run leaves the pool; it continues with a trainer of its own"
SMALLER_CALLS = "Create a new model from a saved state, and send smaller batches"


@dataclass(frozen=True)
class RunStorage:
    """Storage for one run's artifacts."""

    store: Store
    keep_policies: int
    """Number of the run's policies that are kept in S3."""


class TrainedRuns:
    """Runs of the current `TrainerOrder`. Not thread-safe; used on the event loop."""

    def __init__(self, deaths: RunDeaths, make_store: Callable[[], Store] = Store.of_process) -> None:
        """`make_store` returns a store without a grant. It is called in a thread and may raise StoreError."""
        self.deaths = deaths
        self._make_store = make_store
        self._order = OrderInForce[TrainedRun]()
        self._stores: WeakValueDictionary[str, Store] = WeakValueDictionary()
        """Store of each run whose session is open, being opened, or has uploads left."""
        self._out_of_memory: Counter[str] = Counter()
        """Number of consecutive out-of-memory requests of each run."""

    @property
    def uids(self) -> Collection[str]:
        """Uids of the runs, which are the names of their sessions."""
        return self._order.runs.keys()

    def apply(self, order: TrainerOrder) -> None:
        """Replace the current `TrainerOrder`, and give open sessions their new grants. Raises ProblemError and changes
        nothing if the current one is newer (`InvalidRequest`, 409).

        A restarted process starts with the mounted `TrainerOrder`, which may be older than that of the former process.
        Until the operator sends the next one, the token of a new run is refused, and its orchestrator retries.
        """
        self._order.check(order.number)
        self._order.replace(order.runs, order.number)
        for uid in self._out_of_memory.keys() - self.uids:
            del self._out_of_memory[uid]
        for run in order.runs:
            if (store := self._stores.get(run.uid)) is not None:
                store.use_grant(run.grant)

    def find(self, authorization: str) -> TrainedRun | None:
        """Return the run whose token is in the header `Authorization`, or None."""
        return self._order.find(authorization)

    def require(self, uid: str) -> TrainedRun:
        """Return the run with this uid. Raises ProblemError (`TokenInvalid`, 401, as for a refused token) if the
        operator's current `TrainerOrder` does not list it.
        """
        run = self._order.runs.get(uid)
        if run is None:
            raise not_in_pool()
        return run

    def check(self, uid: str, spec: SessionSpec) -> None:
        """Raise ProblemError if the run may not open this session: as `require` does; `PoolEvicted` (422) if the run
        has repeatedly crashed the trainer or exhausted its memory; `SessionInvalid` (422) for a session that is not the
        run's own.
        """
        run = self.require(uid)
        if self.deaths.is_evicted(uid):
            found = "The shared pool's trainer crashed repeatedly while computing for this run"
            raise _evicted(found, OWN_TRAINER if run.client is None else SMALLER_CALLS)
        self._check_memory(uid)
        for field, given, wanted in (
            ("runUid", spec.run_uid, run.uid),
            ("runUri", spec.run_uri, run.folder),
            ("kind", spec.kind, PolicyKind.adapter),
        ):
            if given != wanted:
                message = f"{field} is {str(given)!r}, but must be {str(wanted)!r} in this shared pool. Send that value"
                raise ProblemError.of(UNPROCESSABLE, Reason.SESSION_INVALID, message)

    @contextmanager
    def counting_memory(self, uid: str) -> Iterator[None]:
        """Context of a request for which the trainer computes. Counts the run's consecutive out-of-memory requests, and
        raises ProblemError (`PoolEvicted`, 422) at MAX_OUT_OF_MEMORY.
        """
        try:
            yield
        except ProblemError as error:
            if error.status == OUT_OF_MEMORY and uid in self.uids:
                self._out_of_memory[uid] += 1
                self._check_memory(uid, error)
            raise

    def on_step(self, uid: str) -> None:
        """Reset the run's count of out-of-memory requests, because a step succeeded."""
        self._out_of_memory.pop(uid, None)

    def _check_memory(self, uid: str, cause: ProblemError | None = None) -> None:
        if self._out_of_memory[uid] >= MAX_OUT_OF_MEMORY:
            found = "The shared pool's trainer, which also holds other runs, repeatedly ran out of memory for this run"
            raise _evicted(found if cause is None else f"{found} ({cause.problem.message.rstrip('.')})") from cause

    def check_batch(self, uid: str, size: int | None) -> None:
        """Raise ProblemError if the trainer may not read the run's batch of `size` bytes: as `require` does;
        `TrainBatchInvalid` (422) for an unknown size; `PoolEvicted` (422) if the batch is too large for the pool.
        """
        limit = self.require(uid).max_batch_bytes
        if size is None:
            message = "A shared pool's trainer does not accept batches of unknown size. Send Content-Length"
            raise ProblemError.of(UNPROCESSABLE, Reason.TRAIN_BATCH_INVALID, message)
        if size > limit:
            raise _evicted(
                f"The batch is {size} bytes long, but the shared pool accepts at most {limit} bytes for this run"
            )

    async def storage(self, uid: str) -> RunStorage:
        """Return the storage for the run's artifacts. Raises ProblemError as `require` does, or an S3 reason."""
        store = self._stores.get(uid)
        if store is None:
            try:
                made = await asyncio.to_thread(self._make_store)
            except StoreError as error:
                raise refused_opening(error) from error
            store = self._stores.setdefault(uid, made)  # Another request may have made one meanwhile.
        run = self.require(uid)
        store.use_grant(run.grant)
        return RunStorage(store, run.keep_policies)


def _evicted(cause: str, consequence: str = OWN_TRAINER) -> ProblemError:
    return ProblemError.of(UNPROCESSABLE, Reason.POOL_EVICTED, f"{cause}. {consequence}")


def not_in_pool() -> ProblemError:
    """Return the error for a run that is not in the `TrainerOrder`."""
    return ProblemError.of(UNAUTHORIZED, Reason.TOKEN_INVALID, NOT_IN_POOL)
