"""Registry of the open sessions. Opening is idempotent, and a failed opening leaves no session."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from rlrun.constants import LATER, SESSION_MISSING, UNPROCESSABLE, Reason
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.store import Store

from rlrun_trainer.runtime.compute_thread import PLATFORM, Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.backend import Backend
from rlrun_trainer.sessions.client_session import ClientSession
from rlrun_trainer.sessions.session import Session
from rlrun_trainer.sessions.session_opening import open_client_session, open_session
from rlrun_trainer.sessions.trained_runs import RunStorage, not_in_pool
from rlrun_trainer.sessions.training_session import TrainingSession
from rlrun_trainer.sessions.usage_by_run import UsageByRun

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Session)

ONLY_FOR_OPENING = {"resume_from", "warm_start_from", "warm_start_digest", "warm_start_optimizer"}
"""Fields that matter only when a session is opened. They may differ for an open session."""
MAX_STEPS = "max_steps"
"""Field that may increase while a session is open, because past steps do not depend on it."""


class Sessions:
    """Sessions of this trainer by name."""

    def __init__(self, backend: Backend, compute: Compute, store: Store, settings: TrainerSettings) -> None:
        self._backend = backend
        self._compute = compute
        self._store = store
        self._settings = settings
        self._open: dict[str, Session] = {}
        self._leaving: list[Session] = []
        """Sessions that are being closed, and closed sessions whose uploads may continue."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of sessions that are being opened or closed, by name."""
        self._stopping = False
        self.usage = UsageByRun(compute)
        self._kept: Collection[str] | None = None
        """Names of the sessions that `keep_only` keeps. None keeps all sessions."""
        self._removals: dict[str, asyncio.Task[None]] = {}
        """Removals in progress by session."""

    def all(self) -> list[Session]:
        """Return the open sessions."""
        return list(self._open.values())

    def names(self) -> list[str]:
        """Return the names of the sessions that are open, being opened, or being closed."""
        changing = {name for name, turn in self._turns.items() if turn.locked()}
        return sorted(self._open.keys() | self._removals.keys() | changing)

    def get(self, name: str) -> TrainingSession:
        """Return the session of a run with an orchestrator. Raises ProblemError if it is not open."""
        session = self._open.get(name)
        if not isinstance(session, TrainingSession):
            raise ProblemError.of(
                SESSION_MISSING,
                Reason.SESSION_MISSING,
                f"Session {name!r} is not open; the trainer may have restarted. Open it again.",
            )
        return session

    async def open(self, name: str, spec: SessionSpec, storage: RunStorage | None = None) -> TrainingSession:
        """Open the session, or return the open session with an increased `max_steps`. `storage` takes precedence over
        the process's store and settings.

        Raises ProblemError as `open_session` does, and if the trainer has another model or is stopping, the session is
        open with a different spec, or uploads of a former session of this name are pending. The attempts for these are
        limited, so a later call succeeds.
        """
        return await self._open_as(TrainingSession, open_session, name, spec, storage)

    async def open_client(self, name: str, spec: SessionSpec, storage: RunStorage) -> ClientSession:
        """Open the session of a run whose training loop is a client's program, as `open` does."""
        return await self._open_as(ClientSession, open_client_session, name, spec, storage)

    async def _open_as(
        self,
        kind: type[S],
        make: Callable[[str, SessionSpec, Backend, Compute, Store, TrainerSettings], Awaitable[S]],
        name: str,
        spec: SessionSpec,
        storage: RunStorage | None,
    ) -> S:
        wanted = self._settings.model
        if wanted is not None and spec.model != wanted:
            raise ProblemError.of(
                UNPROCESSABLE, Reason.MODEL_MISMATCH, f"This trainer serves {wanted}, not {spec.model}."
            )
        async with self._turn(name):
            if self._stopping:
                raise ProblemError.of(
                    LATER, Reason.TRAINER_STOPPING, "The trainer is shutting down. Retry against its replacement."
                )
            if self._kept is not None and name not in self._kept:  # since this request arrived
                raise not_in_pool()
            found = self._open.get(name)
            if found is not None and found.is_leaving:  # its removal failed
                await self._close(name)
                found = None
            if isinstance(found, kind):
                _check_same(found.spec, spec)
                found.extend(spec.max_steps)
                return found
            if any(former.name == name and former.uploads.pending for former in self._leaving):
                # The session could start from an older state than the one that is being uploaded.
                raise ProblemError.of(
                    LATER,
                    Reason.WAITING_FOR_ARTIFACTS,
                    f"Uploads of the former session {name!r} are still pending. Retry until they end.",
                )
            store, settings = self._store, self._settings
            if storage is not None:
                store, settings = storage.store, replace(settings, keep_policies=storage.keep_policies)
            session = await make(name, spec, self._backend, self._compute, store, settings)
            session.on_trained = partial(self.usage.add_trained, name)
            self._open[name] = session
            if self._stopping:  # since this request arrived
                session.reject_steps()
            return session

    async def close(self, name: str) -> None:
        """Close the session and release its slot. Has no effect if the session is not open."""
        async with self._turn(name):
            await self._close(name)

    def keep_only(self, names: Collection[str]) -> None:
        """Save and close all other open sessions in the background. Stays in effect until the next call. A
        session that is being opened is closed by the next call.

        A step in progress is cancelled after `shutdown_seconds`. The removal of a session waits for its uploads in the
        rest of this time, and the session cannot be opened again before the removal ends.
        """
        self._kept = frozenset(names)
        self.usage.set_runs(names)
        for name in self._open.keys() - self._kept - self._removals.keys():
            self._removals[name] = asyncio.create_task(self._remove(name))

    async def _remove(self, name: str) -> None:
        started = time.monotonic()
        try:
            async with self._turn(name):
                session = self._open.get(name)
                if session is None or self._kept is None or name in self._kept:
                    return
                log.info("Session %s: its run has left the pool; saving and closing the session", name)
                await self._save(session)
                await self._close(name)
                left = self._settings.shutdown_seconds - (time.monotonic() - started)
                if lost := await session.uploads.drain(left):
                    log.warning("Session %s: %d uploads continue after it was closed", name, lost)
        except Exception:
            log.exception("Session %s: could not be closed", name)
        finally:
            del self._removals[name]

    async def _save(self, session: Session) -> None:
        """Save a last checkpoint within `shutdown_seconds`, then cancel the session's remaining work."""
        seconds = self._settings.shutdown_seconds
        try:
            async with asyncio.timeout(seconds):
                await session.save_before_exit()
        except TimeoutError:
            log.warning("Session %s: no last checkpoint was saved within %.0f s", session.name, seconds)
        except Exception:
            log.exception("Session %s: could not save a last checkpoint", session.name)
        self._compute.cancel(session.name)

    async def _close(self, name: str) -> None:
        """Close the session. After a failure the session stays open but takes no steps, so that a later call can close
        it.
        """
        session = self._open.pop(name, None)
        if session is None:
            return
        # A shutdown during `close` waits for the session's uploads, too.
        self._leaving = [s for s in self._leaving if s.uploads.pending or not s.is_closed] + [session]
        try:
            await session.close()
        except BaseException:
            session.reject_steps()
            self._leaving.remove(session)
            self._open[name] = session
            raise

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def beat(self) -> None:
        """Send a heartbeat to the trainer's other processes. This process exits if one of them has exited."""
        await self._compute.run(PLATFORM, self._backend.heartbeat)

    async def stop(self, seconds: float) -> None:
        """Cancel waiting work, then stop the other processes if the compute thread becomes free within `seconds`."""
        self._compute.cancel_waiting()
        try:
            await asyncio.wait_for(self._compute.run(PLATFORM, self._backend.stop), seconds)
        except TimeoutError:
            log.warning("A step is still running; the other processes will exit after this one")

    async def rescue(self, seconds: float) -> None:
        """Save a last checkpoint for every session within `seconds`, and reject further steps."""
        self._stopping = True
        self._compute.finish_in_turn()
        rescues = [asyncio.create_task(session.save_before_exit()) for session in self._open.values()]
        if not rescues:
            return
        done, late = await asyncio.wait(rescues, timeout=max(0.0, seconds))
        for task in done:
            if (error := task.exception()) is not None:
                log.error("Could not save a last checkpoint: %s: %s", type(error).__name__, error)
        if late:
            log.warning("Sessions without a last checkpoint, because a step was still running: %d", len(late))
        # A snapshot after the step was cancelled could have a part of its gradient.
        for task in late:
            task.cancel()

    def unsaved_steps(self) -> list[int]:
        """Return the newest step of each session that is open or has pending uploads, except sessions that took no step
        or have a complete checkpoint or recovery copy of it.
        """
        sessions = [*self._open.values(), *(session for session in self._leaving if session.uploads.pending)]
        return [session.step for session in sessions if session.has_unsaved_step]

    async def drain(self, seconds: float) -> int:
        """Wait up to `seconds` for all background uploads. Returns the number of remaining uploads."""
        sessions = [*self._open.values(), *self._leaving]
        return sum(await asyncio.gather(*(session.uploads.drain(seconds) for session in sessions)))


def _check_same(existing: SessionSpec, requested: SessionSpec) -> None:
    old, new = (_flat(s.model_dump(exclude=ONLY_FOR_OPENING)) for s in (existing, requested))
    if new[MAX_STEPS] > old[MAX_STEPS]:
        new[MAX_STEPS] = old[MAX_STEPS]
    differing = [
        f"{key} is {old.get(key)!r}, but {new.get(key)!r} was requested"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]
    if differing:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.SESSION_CONFLICT,
            f"The session is open with a different spec ({'; '.join(differing)}). Delete the session first.",
        )


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of all sections by their path, such as `sampling.temperature`."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
