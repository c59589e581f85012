"""Which runs have a session here. Opening twice is one session; a crash while opening leaves none."""

import asyncio
import logging
from collections.abc import Callable

from rlrun.artifacts.store import Store
from rlrun.schema.wire import SessionSpec

from rlrun_trainer.compute import Compute
from rlrun_trainer.crew import Crew, Heartbeat
from rlrun_trainer.opening import open_session
from rlrun_trainer.problems import LATER, SESSION_MISSING, UNPROCESSABLE, Refused
from rlrun_trainer.session import Session
from rlrun_trainer.settings import Settings
from rlrun_trainer.slots import BaseModel
from rlrun_trainer.uploads import Uploads

log = logging.getLogger(__name__)

ONLY_FOR_OPENING = {"resume_from", "warm_start_from"}
"""Fields that say where a session starts; once it is open they have no meaning, so they may differ."""
MAX_STEPS = "max_steps"
"""May grow while the session is open: nothing that was learned depends on it."""


class Sessions:
    """All sessions of this process."""

    def __init__(
        self,
        base: BaseModel,
        compute: Compute,
        store: Store,
        settings: Settings,
        on_leave: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_leave` is called, on the compute thread, when another process of this trainer was told to stop."""
        self._crew = Crew(base, on_leave=on_leave)
        self._compute = compute
        self._store = store
        self._settings = settings
        self._open: dict[str, Session] = {}
        self._leaving: list[Uploads] = []
        self._turn = asyncio.Lock()
        self._stopping = False

    def all(self) -> list[Session]:
        """The open sessions."""
        return list(self._open.values())

    def get(self, name: str) -> Session:
        """Raises Refused when there is none of that name."""
        session = self._open.get(name)
        if session is None:
            raise Refused(
                SESSION_MISSING, "SessionMissing", f"no session {name!r} here: the trainer was restarted, open it again"
            )
        return session

    async def open(self, name: str, spec: SessionSpec) -> Session:
        """The session of that name, opened if it is not; an open one may be given more steps.

        Raises Refused when it is open with another spec.
        """
        wanted = self._settings.model
        if wanted is not None and spec.model != wanted:
            raise Refused(UNPROCESSABLE, "ModelMismatch", f"this trainer serves {wanted}, not {spec.model}")
        async with self._turn:
            if self._stopping:
                raise Refused(LATER, "TrainerStopping", "the trainer was told to stop: ask the one that comes after it")
            session = self._open.get(name)
            if session is not None:
                _check_same(session.spec, spec)
                session.extend(spec.max_steps)
                return session
            session = await open_session(name, spec, self._crew, self._compute, self._store, self._settings)
            self._open[name] = session
            return session

    async def close(self, name: str) -> None:
        """Frees the session's slot; nothing happens when it is not open."""
        async with self._turn:
            session = self._open.pop(name, None)
            if session is not None:
                await session.close()
                self._leaving = [u for u in self._leaving if u.pending] + [session.uploads]

    async def beat(self) -> None:
        """Shows that the other processes of this trainer are there; where one is gone, this one ends."""
        await self._compute.run(self._crew.run_on_all, Heartbeat())

    async def stop(self, seconds: float) -> None:
        """Lets the other processes go, if the compute thread is free within so long."""
        try:
            await asyncio.wait_for(self._compute.run(self._crew.stop), seconds)
        except TimeoutError:
            log.warning("a step is still under way: the other processes end when this one is gone")

    async def rescue(self, seconds: float) -> None:
        """Lets every session save what no checkpoint holds yet, within so long; no step begins any more."""
        self._stopping = True
        rescues = [asyncio.create_task(session.rescue()) for session in self._open.values()]
        if not rescues:
            return
        done, late = await asyncio.wait(rescues, timeout=max(0.0, seconds))
        for task in done:
            if (error := task.exception()) is not None:
                log.error("a last checkpoint was not made: %s: %s", type(error).__name__, error)
        if late:
            log.warning("%d last checkpoints were not made in time: a step is still under way", len(late))

    async def drain(self, seconds: float) -> int:
        """Waits up to so long for all background uploads; returns how many are left."""
        uploads = [s.uploads for s in self._open.values()] + self._leaving
        return sum(await asyncio.gather(*(u.drain(seconds) for u in uploads)))


def _check_same(there: SessionSpec, asked: SessionSpec) -> None:
    old, new = (s.model_dump(exclude=ONLY_FOR_OPENING) for s in (there, asked))
    if new[MAX_STEPS] > old[MAX_STEPS]:
        del old[MAX_STEPS]
    differing = [f"{key} is {old[key]!r}, asked for {new[key]!r}" for key in old if old[key] != new[key]]
    if differing:
        raise Refused(
            UNPROCESSABLE,
            "SessionConflict",
            f"the session is open with another spec ({'; '.join(differing)}): delete it first",
        )
