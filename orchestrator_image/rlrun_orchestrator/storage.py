"""S3 at the start of an attempt: it has to be there, and may hold what an earlier process left."""

import asyncio
import logging
import time
from typing import Any

from rlrun.artifacts.layout import RunLayout
from rlrun.artifacts.store import AccessDenied, BucketMissing, Store, StoreError
from rlrun.service.errors import FatalError
from rlrun.service.exit import EXIT_CONFIGURATION, EXIT_RESTART

from rlrun_orchestrator.board import Board
from rlrun_orchestrator.recorder import saved_state
from rlrun_orchestrator.settings import Settings
from rlrun_orchestrator.spool import Spool

log = logging.getLogger(__name__)


class Storage:
    """The waits for S3, told on the board."""

    def __init__(self, store: Store, layout: RunLayout, board: Board, settings: Settings, spool: Spool) -> None:
        self._store = store
        self._spool = spool
        self._layout = layout
        self._board = board
        self._settings = settings

    async def ready(self, deadline: float) -> None:
        """Returns when the bucket can be used. Raises FatalError after `deadline` seconds, or sooner for a mistake."""
        start = time.monotonic()
        while True:
            try:
                await asyncio.to_thread(self._store.check, self._layout.root.bucket)
                self._board.wait("s3", None)
                return
            except StoreError as error:
                mistake = isinstance(error, AccessDenied | BucketMissing)
                self._board.wait("s3", error.problem)
                patience = min(deadline, self._settings.configuration_grace) if mistake else deadline
                if time.monotonic() - start >= patience:
                    raise FatalError(error.problem, EXIT_CONFIGURATION if mistake else EXIT_RESTART) from error
                log.warning("%s", error)
                await asyncio.sleep(self._settings.poll_interval)

    async def saved_state(self, deadline: float, step: int | None = None) -> dict[str, Any] | None:
        """What an earlier process of this run left, newest or for `step`; None for the first one, or when it cannot be
        read.

        Raises FatalError when S3 does not answer for `deadline` seconds.
        """
        start = time.monotonic()
        while True:
            try:
                found = await saved_state(self._store, self._layout, self._spool, step)
                self._board.wait("s3", None)
                return found
            except ValueError as error:
                log.warning("the saved state of the orchestrator cannot be read and is left: %s", error)
                return None
            except StoreError as error:
                self._board.wait("s3", error.problem)
                if time.monotonic() - start >= deadline:
                    raise FatalError(error.problem, EXIT_RESTART) from error
                await asyncio.sleep(self._settings.poll_interval)
