"""What earlier processes of a run left, and which part of it fits where the trainer is now.

The trainer's step is the run's step (docs/design/005), so a state counts for the draw of examples only if it is of
that very step:

    the newest state in S3        the orchestrator was replaced, the trainer lived
    that, one batch further       the same in mid-step: the trainer has made the step and nobody heard of it
    the one in the checkpoint     the trainer was replaced, or both were

Counters are another matter: they tell what the run has done in all, lost steps included, and go on from the newest.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.schema.wire import SessionState

from rlrun_orchestrator.batch import Batch, SentBatch
from rlrun_orchestrator.board import Board
from rlrun_orchestrator.deal import Deal

log = logging.getLogger(__name__)

VERSION = 2
ODD = (KeyError, TypeError, ValueError, AttributeError)
"""What a state of another shape raises."""


def state_of(run_uid: str, step: int, board: Board, deal: Deal, batch: Batch | None) -> dict[str, Any]:
    """What is kept in S3 after each step and in checkpoints, as JSON types."""
    state: dict[str, Any] = {
        "version": VERSION,
        "run": run_uid,
        "step": step,
        "reward": board.rewards[-1][1] if board.rewards else None,
        "board": board.state(),
        "deal": deal.state(),
    }
    return state | {"batch": batch.sent().to_json()} if batch is not None else state


@dataclass(frozen=True)
class Unheard:
    """A step that the trainer made and whose result nobody has heard. What is not known is None."""

    batch: SentBatch | None


def own(run_uid: str, state: SessionState) -> Mapping[str, Any] | None:
    """What this very run put into the checkpoint that the trainer resumed from, if it did."""
    checkpointed = state.orchestrator_state
    return checkpointed if checkpointed and checkpointed.get("run") == run_uid else None


def restore(
    run_uid: str, saved: Mapping[str, Any] | None, state: SessionState, board: Board, deal: Deal
) -> Unheard | None:
    """Continues counters and draw in a new process; tells of a step that has no line of metrics yet."""
    found = saved or own(run_uid, state)
    try:
        if found:
            board.restore(found["board"])
        if saved is None or saved["step"] == state.step:
            unheard = None
        else:
            batch = SentBatch.of(saved["batch"]) if saved.get("batch") else None
            known = batch is not None and batch.step + 1 == state.step
            made = state.last is not None and state.last.step == state.step and saved["step"] < state.step
            unheard = Unheard(batch if known else None) if known or made else None
    except ODD as error:
        log.warning("the saved state is of another shape and is not used: %s: %s", type(error).__name__, error)
        saved, unheard = None, None
    if not _of_this_step(saved, unheard, state.step, deal):
        rewind(run_uid, state, deal)
    return unheard


def _of_this_step(saved: Mapping[str, Any] | None, unheard: Unheard | None, step: int, deal: Deal) -> bool:
    if saved is None:
        return False
    trained = unheard.batch.ordinals if unheard is not None and unheard.batch is not None else []
    if saved["step"] != step and not trained:
        return False
    try:
        deal.restore(saved["deal"], without=trained)
    except ODD as error:
        log.warning("the saved draw is of another shape and is not used: %s: %s", type(error).__name__, error)
        return False
    return True


def rewind(run_uid: str, state: SessionState, deal: Deal) -> None:
    """Deals from the trainer's step on as after that step the first time."""
    checkpointed = state.orchestrator_state
    try:
        if checkpointed is None:
            deal.restart()
        elif checkpointed.get("run") == run_uid:
            deal.restore(checkpointed["deal"])
        else:  # the run starts from another run's checkpoint, and from its knowledge of the examples
            deal.begin_with(checkpointed["deal"]["buffer"])
    except ODD as error:
        log.warning("the checkpoint's state is of another shape and is not used: %s: %s", type(error).__name__, error)
        deal.restart()
