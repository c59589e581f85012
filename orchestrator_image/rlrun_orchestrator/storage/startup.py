"""S3 access at the start of an attempt: wait for the bucket, and load an earlier process's state."""

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rlrun.constants import ExitCode
from rlrun.service.errors import FatalError
from rlrun.storage.errors import Repeat
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store, StoreError

from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.storage.resume_state import ResumeState
from rlrun_orchestrator.storage.state_files import (
    checkpoint_state_uri,
    claim_state,
    parse_object,
    read_checkpoint_state,
)
from rlrun_orchestrator.storage.upload_spool import UploadSpool

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class StartupTimeouts:
    """Time limits for the waits before the first step, in seconds."""

    component: float
    """Time after which an unreachable component ends the attempt."""
    trainer: float
    """Time after which an unreachable trainer ends the attempt."""
    denied_storage: float
    """Time after which a missing bucket, or credentials without access to it, end the run."""
    poll_interval: float
    """Pause between two checks of a component."""


class StartupStateLoader:
    """Loader that waits for S3, with the reason for the wait shown in the run's status."""

    def __init__(
        self,
        store: Store,
        layout: RunLayout,
        conditions: StatusConditions,
        timeouts: StartupTimeouts,
        spool: UploadSpool,
    ) -> None:
        self._store = store
        self._spool = spool
        self._layout = layout
        self._conditions = conditions
        self._timeouts = timeouts

    async def wait_for_bucket(self) -> None:
        """Wait until the bucket can be used. Raises FatalError.

        An S3 server that has just started may deny access to the bucket for minutes, so only consecutive denials, not
        preceding timeouts, count as a wrong configuration.
        """
        start = time.monotonic()
        denied_since: float | None = None
        while True:
            try:
                await asyncio.to_thread(self._store.check, self._layout.root / "metrics")
                self._conditions.set_waiting("s3", None)
                return
            except StoreError as error:
                now = time.monotonic()
                self._conditions.set_waiting("s3", error.problem)
                if error.repeat is not Repeat.grace:
                    denied_since = None
                elif denied_since is None:
                    denied_since = now
                is_denied = denied_since is not None and now - denied_since >= self._timeouts.denied_storage
                if is_denied or now - start >= self._timeouts.component:
                    code = ExitCode.RESTART if denied_since is None else ExitCode.CONFIGURATION
                    raise FatalError(error.problem, code) from error
                log.warning("%s", error)
                await asyncio.sleep(self._timeouts.poll_interval)

    async def claim_state(self) -> tuple[S3Uri, ResumeState | None]:
        """Return the URI for this process's state, and the state that its predecessor left.

        The state is None for the first process, or if it is malformed. Raises FatalError if S3 stays unreachable.
        """
        uri, data = await self._access(functools.partial(claim_state, self._store, self._layout, self._spool))
        return uri, _parse(data, uri)

    async def load_state(self, step: int) -> ResumeState | None:
        """Return the state of `step` that this run stored outside the checkpoint, or None if there is none or it is
        malformed.

        Raises FatalError if S3 stays unreachable.
        """
        read = functools.partial(read_checkpoint_state, self._store, self._layout, self._spool, step)
        return _parse(await self._access(read), checkpoint_state_uri(self._layout, step))

    async def _access(self, access: Callable[[], T]) -> T:
        start = time.monotonic()
        while True:
            try:
                result = await asyncio.to_thread(access)
                self._conditions.set_waiting("s3", None)
                return result
            except StoreError as error:
                self._conditions.set_waiting("s3", error.problem)
                if time.monotonic() - start >= self._timeouts.component:
                    raise FatalError(error.problem, ExitCode.RESTART) from error
                await asyncio.sleep(self._timeouts.poll_interval)


def _parse(data: bytes, uri: S3Uri) -> ResumeState | None:
    try:
        return ResumeState.parse(parse_object(data), str(uri))
    except ValueError as error:
        log.warning("ignoring the saved state of the orchestrator, because it is malformed: %s", error)
        return None
