"""Recovery copies of one run in S3: checkpoints that only a replacement trainer resumes from.

A copy limits how many steps are lost when a trainer is lost. Users do not see copies, and the trainer deletes them.
"""

import contextlib
import logging
from collections.abc import Sequence

from rlrun.storage.layout import RunLayout, step_of
from rlrun.storage.store import Store, StoreError

log = logging.getLogger(__name__)

KEPT = 2
"""Number of complete copies that are kept. The older one is used if the newest is damaged."""
TRIED = 4
"""Maximum number of checkpoints and copies from which a session tries to start."""


class RecoveryCopies:
    """Recovery copies of one run. All methods call S3."""

    def __init__(self, store: Store, layout: RunLayout) -> None:
        self.unusable: set[int] = set()
        """Steps of copies that are incomplete, damaged or belong to another run."""
        self._store = store
        self._layout = layout

    def newest_from(self, step: int) -> list[int]:
        """Return the steps of the newest TRIED copies at or after `step`, newest first, including incomplete copies.
        Raises StoreError.
        """
        return sorted((found for found in self._steps() if found >= step), reverse=True)[:TRIED]

    def prune(self, complete: Sequence[int], checkpoint: int) -> None:
        """Delete the copies that are no longer needed: unusable copies, copies that are not newer than the usable
        checkpoint of step `checkpoint`, and copies older than the newest complete copy, except the KEPT newest complete
        ones. `complete` has the steps of complete copies, oldest first.

        Manifests are deleted first, so that an interrupted deletion leaves no copy that appears complete.
        """
        kept = [step for step in complete[-KEPT:] if step > checkpoint]
        limit = max([checkpoint, *kept])
        try:
            for step in self._steps():
                if step not in kept and (step <= limit or step in self.unusable):
                    self._store.delete_prefix(self._layout.recovery_copy(step))
                    self.unusable.discard(step)
        except StoreError as error:
            # Retried after the next complete copy or checkpoint.
            log.warning("Could not delete old recovery copies: %s", error)

    def _steps(self) -> list[int]:
        steps = []
        for name in self._store.list_folders(self._layout.recovery):
            with contextlib.suppress(ValueError):
                steps.append(step_of(name))
        return steps
